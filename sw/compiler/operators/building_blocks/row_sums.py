"""Weighted sums of the rows of a matrix product's input, added to all of its results.

A zero point z of the second factor adds -z · Σ x to each result of a row. This costs GEMM one more
tile of outputs and the ALU one addition per result. Subtracting z from the weights instead would
need nine-bit weights, which take GEMM twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr, IterVar
from amaranth_vta.sw.compiler.te.tensor import Tensor

from .product import reduce_axes


@dataclass(frozen=True)
class RowSums:
    """``weights`` is the argument (inputs, BLOCK_OUT, BLOCK_IN) wgt_dtype, ``buffer`` its copy in
    the scratchpad, ``sums`` are the sums over ``axes``, and ``total`` is the product plus these
    sums.
    """

    weights: Tensor
    buffer: Tensor
    axes: tuple[IterVar, ...]
    sums: Tensor
    total: Tensor

    @classmethod
    def added(cls, matmul: Tensor, x_buf: Tensor, env: Environment) -> RowSums:
        """Add row sums to ``matmul`` (…, rows, outputs, BATCH, BLOCK_OUT), a product of ``x_buf``
        (…, rows, inputs, BATCH, BLOCK_IN).
        """
        *outer, _, b, k = matmul.shape
        inputs = x_buf.shape[-3]
        weights = te.placeholder((inputs, k, env.BLOCK_IN), "row_weights", env.wgt_dtype)
        buffer = te.compute(weights.shape, lambda *i: weights(*i), "row_weights_buf")
        ko, ki = reduce_axes(ko=inputs, ki=env.BLOCK_IN)

        def weighted(*i: Expr) -> Expr:
            *row, b, k = i
            weight = buffer(ko, k, ki).astype(env.acc_dtype)
            return te.sum(x_buf(*row, ko, b, ki).astype(env.acc_dtype) * weight, axis=[ko, ki])

        sums = te.compute((*outer, b, k), weighted, "row_sums")
        total = te.compute(
            matmul.shape, lambda *i: matmul(*i) + sums(*i[:-3], *i[-2:]), "with_row_sums"
        )
        return cls(weights, buffer, (ko, ki), sums, total)

    def place(self, s: te.Schedule, y: Tensor, at: IterVar, twice: bool, env: Environment) -> None:
        """Compute the sums at the axis ``at`` of ``y``, double-buffered if ``twice``. The weights
        are loaded at the start.
        """
        s[self.buffer].set_scope(env.wgt_scope)
        s[self.buffer].pragma(s[self.buffer].op.axis[0], env.dma_copy)
        for tensor in (self.sums, self.total):
            s[tensor].set_scope(env.acc_scope)
            s[tensor].compute_at(s[y], at)
            if twice:
                s[tensor].double_buffer()
        *row, b, k = s[self.sums].op.axis
        ko, ki = self.axes
        s[self.sums].reorder(ko, *row, b, k, ki)
        s[self.sums].tensorize(b, env.gemm)
        *g, n, o, b, k = s[self.total].op.axis
        s[self.total].reorder(*g, o, n, b, k)
        s[self.total].pragma(o, env.alu)
