"""Weighted sums over the inputs of each row of a product, added to all of its results.

A part z that all weights share adds z · Σ x to each result of a row; a row is a pixel of a
convolution. This costs GEMM one more tile of outputs and the ALU one addition per result. Weights
that include z may need nine bits, which take GEMM twice as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr, IterVar
from amaranth_vta.sw.compiler.te.tensor import Tensor


@dataclass(frozen=True)
class RowSums:
    """``weights`` is the argument (inputs, rows and columns of a kernel if any, BLOCK_OUT,
    BLOCK_IN) wgt_dtype, ``buffer`` its copy in the scratchpad, ``sums`` are the sums over ``axes``,
    and ``total`` is the product plus these sums. Its dimension number ``outputs`` counts tiles of
    outputs.
    """

    weights: Tensor
    buffer: Tensor
    axes: tuple[IterVar, ...]
    sums: Tensor
    total: Tensor
    outputs: int

    @classmethod
    def added(
        cls,
        product: Tensor,
        outputs: int,
        operand: Callable[..., Expr],
        axes: Sequence[IterVar],
        env: Environment,
        like: RowSums | None = None,
        name: str = "",
    ) -> RowSums:
        """Add row sums to ``product``, whose dimension number ``outputs`` counts tiles of outputs.
        ``operand`` returns the input that the product at an index, without ``outputs`` and
        BLOCK_OUT, multiplies at a place on ``axes``. With ``like`` the weights are shared.
        ``name`` follows the names of the sums.
        """
        extents = [axis.interval[1] + 1 for axis in axes]
        own = tuple(
            te.reduce_axis((0, extent), axis.name)
            for extent, axis in zip(extents, axes, strict=True)
        )
        if like is not None:
            weights, buffer = like.weights, like.buffer
        else:
            shape = (*extents[:-1], env.BLOCK_OUT, extents[-1])
            weights = te.placeholder(shape, "row_weights", env.wgt_dtype)
            buffer = te.compute(weights.shape, lambda *i: weights(*i), "row_weights_buf")

        def weighted(*i: Expr) -> Expr:
            weight = buffer(*own[:-1], i[-1], own[-1]).astype(env.acc_dtype)
            return te.sum(operand(i[:-1], own).astype(env.acc_dtype) * weight, axis=list(own))

        shape = product.shape
        sums = te.compute((*shape[:outputs], *shape[outputs + 1 :]), weighted, f"row_sums{name}")
        total = te.compute(
            shape,
            lambda *i: product(*i) + sums(*i[:outputs], *i[outputs + 1 :]),
            f"with_row_sums{name}",
        )
        return cls(weights, buffer, own, sums, total, outputs)

    def place(self, s: te.Schedule, y: Tensor, at: IterVar, copies: int, env: Environment) -> None:
        """Compute the sums at the axis ``at`` of ``y``, in ``copies``. The weights are loaded at
        the start.
        """
        s[self.buffer].set_scope(env.wgt_scope)
        s[self.buffer].pragma(s[self.buffer].op.axis[0], env.dma_copy)
        for tensor in (self.sums, self.total):
            s[tensor].set_scope(env.acc_scope)
            s[tensor].compute_at(s[y], at)
            if copies > 1:
                s[tensor].double_buffer(copies)
        *row, b, k = s[self.sums].op.axis
        *taps, ki = self.axes
        s[self.sums].reorder(*taps, *row, b, k, ki)
        s[self.sums].tensorize(b, env.gemm)
        # Rows innermost, as in the stages that follow.
        axes = list(s[self.total].op.axis)
        outputs = axes.pop(self.outputs)
        s[self.total].reorder(outputs, *axes)
        s[self.total].pragma(outputs, env.alu)
