"""A residual addition fused with a product: GEMM loads the other operand, tile by tile.

The ALU adds both before the store, with the factors and the rounding of a `FixedPoint`: the
product's result makes no round trip through memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import IterVar
from amaranth_vta.sw.compiler.te.tensor import Tensor

from .fixed_point import FixedPoint
from .identity import identity_operand, multiplied


@dataclass(frozen=True)
class Addition:
    """Adds another operand, of the result's shape and out_dtype, times the first factor of
    ``sum``, to the product's result times the second. Requires a machine on which
    `reads_what_it_stores`.
    """

    sum: FixedPoint

    # Accumulators for constants per tile of output channels.
    constants = 0

    def without_parameters(self) -> Addition:
        return Addition(self.sum.without_parameters())

    @property
    def shared(self) -> int:
        """Accumulators for constants that all channels share."""
        return self.sum.parameter_count

    @property
    def operations(self) -> int:
        """ALU micro-ops per vector."""
        return self.sum.operations

    @property
    def accumulators(self) -> int:
        """Accumulators live at a time per result, including the product's."""
        return 2 + (self.sum.to_even > 0) + bool(self.sum.table)


class Residual:
    """Tensors of an addition to ``value``, the last stage of a product's epilogue.

    ``args`` are its arguments besides the other operand ``x``: the identity matrix, and parameters
    if the constants have any. ``stages`` follow ``value``; the last one holds the sums.
    """

    def __init__(self, addition: Addition, value: Tensor, env: Environment) -> None:
        constants = addition.sum
        self._value = value
        self.x = te.placeholder(value.shape, "residual", env.out_dtype)
        self._loaded = te.compute(value.shape, lambda *i: self.x(*i), "residual_inp")
        self._identity = identity_operand(env)
        self._buffer = multiplied(value.shape, self._loaded, self._identity[1], "residual_buf", env)
        tile = (constants.parameter_count or 1, env.BATCH, env.BLOCK_OUT)
        parameters = te.placeholder(tile, "addition", env.acc_dtype)
        kept = te.compute(tile, lambda *i: parameters(*i), "addition_buf")
        self._parameters = (parameters, kept) if constants.parameter_count else None
        self.stages = constants.stages([self._buffer, value], lambda n, *i: kept(n, *i[-2:]), env)

    @cached_property
    def args(self) -> list[Tensor]:
        given = [self._identity[0]]
        return [*given, self._parameters[0]] if self._parameters else given

    def place(
        self,
        s: te.Schedule,
        y: Tensor,
        at: IterVar,
        env: Environment,
        copies: tuple[int, int],
        bank: int | None = None,
        after: Tensor | None = None,
    ) -> None:
        """Load the other operand at the axis ``at`` of ``y``, with ``copies`` buffers in the input
        and the accumulator scratchpad (in accumulator ``bank``, if given), and shared constants at
        the start. The load comes ``after`` the given tensor, by default before the sum's products,
        so that its input buffer is free early.
        """
        places = (self._loaded, env.inp_scope, None), (self._buffer, env.acc_scope, bank)
        for (tensor, scope, within), held in zip(places, copies, strict=True):
            s[tensor].set_scope(scope)
            s[tensor].compute_at(s[y], at)
            if held > 1 or within is not None:
                s[tensor].double_buffer(held, within)
        s[self._loaded].pragma(self._loaded.op.axis[0], env.dma_copy)
        s[self._buffer].tensorize(self._buffer.op.axis[-2], env.gemm)
        # Issue all ALU instructions after all products, so that GEMM waits for none of them.
        s[self.stages[0]].after(s[self._value])
        if after is not None:
            s[self._buffer].after(s[after])
            s[self._loaded].after(s[after])
        for kept, scope in ((self._identity, env.wgt_scope), (self._parameters, env.acc_scope)):
            if kept is not None:
                s[kept[1]].set_scope(scope)
                s[kept[1]].pragma(kept[1].op.axis[0], env.dma_copy)
