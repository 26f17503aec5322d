"""What follows a sum of products: bias, scaling with rounding, clipping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.isa import REQUANTIZE_PARAMETERS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Requantize:
    """Division by 2^``shift``, rounded half to even, then clipping to ``low`` and ``high``."""

    shift: int
    low: int
    high: int

    @property
    def half(self) -> int:
        """What the bias holds beyond the bias, so that rounding costs no addition."""
        return 1 << self.shift >> 1

    @property
    def operations(self) -> int:
        """Micro-ops that an accumulator takes in the ALU."""
        return 9 if self.shift else 3

    def evaluate(self, total: Array) -> Array:
        """The meaning, for an array of integers that have no ``half`` in them."""
        whole, rest = total >> self.shift, total & ((1 << self.shift) - 1)
        up = (rest > self.half) | ((rest == self.half) & (whole & 1 == 1))
        return np.clip(whole + (up & (self.shift > 0)), self.low, self.high)


@dataclass(frozen=True)
class Rescale:
    """Scales, zero points and bounds of any value, a channel at a time, as
    `te.requantization_parameters` has them; for machines with REQUANTIZE."""

    # Micro-ops that an accumulator takes in the ALU.
    operations = 1


def rescaled(total: Tensor, parameters: Callable[..., Expr]) -> list[Tensor]:
    """The one stage from ``total`` to its requantized value.

    ``parameters`` gives one of them at its number and an index of ``total``.
    """
    numbers = range(REQUANTIZE_PARAMETERS)
    return [
        te.compute(
            total.shape,
            lambda *i: te.requantize(total(*i), *(parameters(number, *i) for number in numbers)),
            f"{total.name}_rescaled",
        )
    ]


def requantized(
    total: Tensor,
    bias: Callable[..., Expr],
    requantize: Requantize,
    env: Environment,
) -> list[Tensor]:
    """The stages from ``total`` to its requantized value, all for the ALU; the last has it.

    ``bias`` gives the bias at an index of ``total``, with `Requantize.half` added to it.

    Let a be the sum of both and n the shift. Then a >> n rounds halves up, which is right but
    for a tie, where the n low bits of a are 0, that comes out odd: there one is to be taken off.
    Taking one off where bit n of a is set does that, and elsewhere changes nothing: if a low bit
    is set, a - 1 has the same quotient. Bit n moved to the sign and back is 0 or -1.
    """
    biased = te.compute(total.shape, lambda *i: total(*i) + bias(*i), f"{total.name}_biased")
    stages = [biased]
    n, rounded = requantize.shift, biased
    if n > 0:
        odd = te.compute(
            total.shape,
            lambda *i: biased(*i) << (env.ACC_WIDTH - 1 - n) >> (env.ACC_WIDTH - 1),
            f"{total.name}_odd",
        )
        rounded = te.compute(
            total.shape, lambda *i: biased(*i) + odd(*i) >> n, f"{total.name}_rounded"
        )
        stages += [odd, rounded]
    clipped = te.compute(
        total.shape,
        lambda *i: te.min(te.max(rounded(*i), requantize.low), requantize.high),
        f"{total.name}_clipped",
    )
    return [*stages, clipped]


def post_processed(
    total: Tensor,
    channels: Sequence[int],
    position: Callable[..., Sequence[Expr]],
    requantize: Requantize | Rescale,
    env: Environment,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Bias or parameters, their buffer, and the stages from ``total`` to its requantized value.

    ``channels`` are the extents of the tiles of channels, and ``position`` gives the indices among
    them for an index of ``total`` without its last two, which are those within a tile. The bias is
    (*channels, BATCH, BLOCK_OUT) acc_dtype, and has `Requantize.half` added; for `Rescale` the
    parameters are (*channels, parameters, BATCH, BLOCK_OUT).
    """
    rescales = isinstance(requantize, Rescale)
    numbers = (REQUANTIZE_PARAMETERS,) if rescales else ()
    constants = te.placeholder(
        (*channels, *numbers, env.BATCH, env.BLOCK_OUT),
        "parameters" if rescales else "bias",
        env.acc_dtype,
    )
    buffer = te.compute(constants.shape, lambda *i: constants(*i), f"{constants.name}_buf")
    if isinstance(requantize, Rescale):
        stages = rescaled(
            total, lambda number, *i: buffer(*position(*i[:-2]), number, i[-2], i[-1])
        )
    else:
        stages = requantized(
            total, lambda *i: buffer(*position(*i[:-2]), i[-2], i[-1]), requantize, env
        )
    return constants, buffer, stages
