"""Element-wise operators on one or two tensors: sums, products, minima, maxima and shifts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.evaluation import wrap_array
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile
from amaranth_vta.sw.compiler.tuner.workload import tuned

from .building_blocks.pointwise import Pointwise

Array = npt.NDArray[Any]


def _shift(value: Array, amount: Array) -> Array:
    wide = np.clip(amount, -63, 63)
    return np.where(wide < 0, value << np.maximum(-wide, 0), value >> np.maximum(wide, 0))


# Each operation as an expression for the ALU, and as a function of NumPy arrays of int64.
_OPERATIONS: dict[str, tuple[Callable[[Expr, Expr | int], Expr], Callable[..., Array]]] = {
    "add": (lambda x, y: x + y, np.add),
    "multiply": (lambda x, y: x * y, np.multiply),
    "minimum": (lambda x, y: te.min(x, y), np.minimum),
    "maximum": (lambda x, y: te.max(x, y), np.maximum),
    # Shifts right; a negative amount shifts left.
    "shift": (lambda x, y: x >> y, _shift),
}


@dataclass(frozen=True)
class Elementwise(Pointwise):
    """``operation`` on two operands, or on one and a 16-bit ``constant``, then clipping to ``low``
    and ``high`` where given; without an operation, only clipping.

    Each operand has ``vectors`` tiles of BATCH rows and BLOCK_OUT channels; operands listed in
    ``wide`` are acc_dtype, the others out_dtype. Results wrap around to acc_dtype before clipping,
    and their low bits are stored. Operations are add, multiply, minimum, maximum and shift (right;
    left by a negative amount).
    """

    vectors: int
    operation: str | None
    constant: int | None = None
    low: int | None = None
    high: int | None = None
    wide: tuple[bool, ...] = (False, False)

    @property
    def _operands(self) -> int:
        return 1 if self.operation is None or self.constant is not None else 2

    def operand_dtypes(self, env: Environment) -> Sequence[str]:
        return [env.acc_dtype if wide else env.out_dtype for wide in self.wide[: self._operands]]

    def stages(
        self, operands: Sequence[Tensor], parameters: Tensor, env: Environment
    ) -> list[Tensor]:
        first, second = operands[0], operands[-1]
        stages: list[Tensor] = []
        if self.operation is not None:
            function, _ = _OPERATIONS[self.operation]
            stages = [
                te.compute(
                    first.shape,
                    lambda *i: function(
                        first(*i), second(*i) if self.constant is None else self.constant
                    ),
                    self.operation,
                )
            ]
        if self.low is not None:
            above = [first, *stages][-1]
            stages.append(te.compute(first.shape, lambda *i: te.max(above(*i), self.low), "low"))
        if self.high is not None:
            below = [first, *stages][-1]
            stages.append(te.compute(first.shape, lambda *i: te.min(below(*i), self.high), "high"))
        return stages

    def evaluate(self, operands: Sequence[Array], env: Environment) -> Array:
        """The reference in NumPy, (vectors, BATCH, BLOCK_OUT) out_dtype."""
        result = operands[0].astype(np.int64)
        if self.operation is not None:
            _, function = _OPERATIONS[self.operation]
            other = operands[-1].astype(np.int64) if self.constant is None else self.constant
            result = wrap_array(function(result, other), env.acc_dtype)
        if self.low is not None:
            result = np.maximum(result, self.low)
        if self.high is not None:
            result = np.minimum(result, self.high)
        return wrap_array(result, env.out_dtype)


def elementwise(
    workload: Elementwise,
    env: Environment,
    knobs: OutputTile | None = None,
    name: str = "elementwise",
) -> Function:
    """Build a function of one or two operands and output; for layouts see `Pointwise`. Default
    knobs and exceptions: see `tuned`; no schedule fits a constant of more than 16 bits.
    """
    return tuned(workload, env, knobs, name)
