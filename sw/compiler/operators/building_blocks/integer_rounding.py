"""Roundings of sums by integer arithmetic, as TensorFlow Lite's reference kernels define them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.sw.compiler import te

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Quotient:
    """Division by ``count``, rounded half away from zero."""

    count: int

    def evaluate(self, sums: Array) -> Array:
        return np.sign(sums) * ((np.abs(sums) + self.count // 2) // self.count)


@dataclass(frozen=True)
class Multiplier:
    """Multiplication by ``multiplier`` · 2^(``shift`` - 31), rounded ``twice``, or once, half away
    from zero."""

    multiplier: int
    shift: int
    twice: bool

    def evaluate(self, sums: Array) -> Array:
        return te.multiply_by_quantized_multiplier(sums, self.multiplier, self.shift, self.twice)


@dataclass(frozen=True)
class StepFunction:
    """A monotone function: ``lowest``, and 1 more from each of the sums ``begins`` on."""

    lowest: int
    begins: tuple[int, ...]

    def evaluate(self, sums: Array) -> Array:
        return self.lowest + np.searchsorted(np.array(self.begins, np.int64), sums, "right")


IntegerRounding = Quotient | Multiplier | StepFunction
