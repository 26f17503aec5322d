"""Sums of products for GEMM: their tensors, and where a schedule computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr, IterVar
from amaranth_vta.sw.compiler.te.tensor import Tensor

from .epilogue import Epilogue


@dataclass(frozen=True)
class Product:
    """``x`` and ``w`` are the operands, ``x_buf`` and ``w_buf`` their scratchpad buffers, and
    ``total`` is the accumulated sum over ``axes``, the last of which runs within tiles."""

    x: Tensor
    w: Tensor
    x_buf: Tensor
    w_buf: Tensor
    axes: tuple[IterVar, ...]
    total: Tensor
    epilogue: Epilogue

    @property
    def args(self) -> list[Tensor]:
        end = self.epilogue
        if end.residual is None:
            return [self.x, self.w, *end.args, end.y]
        added = end.residual
        return [self.x, added.x, self.w, *end.args, *added.args, end.y]

    def place_results(
        self,
        s: te.Schedule,
        at: IterVar,
        env: Environment,
        copies: int = 1,
        added_copies: int = 1,
    ) -> None:
        """Computes the total and the stages of the epilogue at the axis ``at`` of the output, in
        ``copies``: with several, the next tile accumulates while the epilogue of one runs and it is
        stored. ``added_copies`` of the other operand of an addition are held at a time."""
        stages = self.epilogue.stages
        for tensor in (self.total, *stages):
            s[tensor].set_scope(env.acc_scope)
            s[tensor].compute_at(s[self.epilogue.y], at)
            if copies > 1:
                s[tensor].double_buffer(copies)
        for tensor in stages:
            s[tensor].pragma(s[tensor].op.axis[0], env.alu)
        if self.epilogue.residual is not None:
            added = (added_copies, copies)
            self.epilogue.residual.place(s, self.epilogue.y, at, env, added)

    def place_constants(self, s: te.Schedule, at: IterVar | None, env: Environment) -> None:
        """Loads bias or parameters at the axis ``at`` of the output, or at the beginning if it is
        None; what all channels share is always loaded at the beginning."""
        if self.epilogue.shared is not None:
            shared = s[self.epilogue.shared[1]]
            shared.set_scope(env.acc_scope)
            shared.pragma(shared.op.axis[0], env.dma_copy)
        buffer = self.epilogue.buffer
        s[buffer].set_scope(env.acc_scope)
        if at is not None:
            s[buffer].compute_at(s[self.epilogue.y], at)
        s[buffer].pragma(s[buffer].op.axis[0], env.dma_copy)

    def place_operands(
        self,
        s: te.Schedule,
        x_at: IterVar,
        w_at: IterVar,
        step: IterVar | None,
        copies: tuple[int, int],
        env: Environment,
    ) -> None:
        """Loads tiles of the operands for each ``step`` of the sum, or, if it is None, once per
        tile of the output, at its axes ``x_at`` and ``w_at``, into ``copies`` of the buffers of x
        and w."""
        operands = ((self.x_buf, env.inp_scope, x_at), (self.w_buf, env.wgt_scope, w_at))
        for (tensor, scope, at), held in zip(operands, copies, strict=True):
            s[tensor].set_scope(scope)
            if step is None:
                s[tensor].compute_at(s[self.epilogue.y], at)
            else:
                s[tensor].compute_at(s[self.total], step)
            s[tensor].pragma(s[tensor].op.axis[0], env.dma_copy)
            if held > 1:
                s[tensor].double_buffer(held)


def reduce_axes(**extents: int) -> tuple[IterVar, ...]:
    """Axes to sum over, given by name and extent."""
    return tuple(te.reduce_axis((0, extent), name) for name, extent in extents.items())


def term_axis(terms: int) -> tuple[IterVar, ...]:
    """The axis over the terms of weights; empty for weights of one term."""
    return reduce_axes(term=terms) if terms > 1 else ()


def of_term(tap: Expr, terms: int, term: Sequence[IterVar]) -> Expr:
    """The index of a ``term`` (a `term_axis`) of the weight at ``tap``; the ``terms`` of a weight
    are adjacent."""
    return tap * terms + term[0] if term else tap
