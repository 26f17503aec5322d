"""Max pooling fused behind a product, for windows that do not overlap.

Each result belongs to one window, so tiles of maxima share no results and nothing is computed
twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor


@dataclass(frozen=True)
class Pooling:
    """``output`` (rows, columns) maxima of windows that are ``strides`` apart and no larger."""

    output: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]

    @property
    def operations(self) -> int:
        """ALU micro-ops per maximum."""
        return self.kernel[0] * self.kernel[1]

    @property
    def image(self) -> tuple[int, int]:
        """Rows and columns of results up to the end of the last window, gaps between windows
        included."""
        return self.rows(self.output[0]), self.columns(self.output[1])

    def rows(self, rows: int) -> int:
        """Rows of results that ``rows`` rows of maxima need."""
        return (rows - 1) * self.strides[0] + self.kernel[0]

    def columns(self, columns: int) -> int:
        return (columns - 1) * self.strides[1] + self.kernel[1]

    def stages(self, image: Tensor, env: Environment) -> list[Tensor]:
        """The stages from ``image`` (…, rows, columns, BATCH, BLOCK_OUT) to the maxima, which the
        last one holds.

        The first one is a reset by GEMM, which comes before the products of the image.
        """
        shape = (*image.shape[:-4], *self.output, *image.shape[-2:])
        first, *others = product(range(self.kernel[0]), range(self.kernel[1]))

        def read(tap: tuple[int, int], i: Sequence[Expr]) -> Expr:
            *channel, h, w, b, k = i
            row, column = h * self.strides[0] + tap[0], w * self.strides[1] + tap[1]
            return image(*channel, row, column, b, k)

        reset = te.compute(shape, lambda *i: te.const(0, env.acc_dtype), "pool_reset")

        def greatest(*i: Expr) -> Expr:
            value = reset(*i) + read(first, i)
            for tap in others:
                value = te.max(value, read(tap, i))
            return value

        return [reset, te.compute(shape, greatest, "pool")]
