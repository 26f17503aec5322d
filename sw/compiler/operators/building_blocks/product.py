"""Sums of products for GEMM: their tensors, and where a schedule computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Memory
from amaranth_vta.hw.tiles import TileMemory
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr, IterVar
from amaranth_vta.sw.compiler.te.tensor import Tensor

from .epilogue import Epilogue
from .row_sums import RowSums


@dataclass(frozen=True)
class Product:
    """``x`` and ``w`` are the operands, ``x_buf`` and ``w_buf`` their scratchpad buffers; ``total``
    is the sum of products over ``axes``, the last of which is within tiles. If sums are computed in
    `Phases`, they are in ``phases``, and ``total`` is the first of them. The epilogue follows
    ``rows`` if there are any, else the sums.
    """

    x: Tensor
    w: Tensor
    x_buf: Tensor
    w_buf: Tensor
    axes: tuple[IterVar, ...]
    total: Tensor
    epilogue: Epilogue
    rows: Sequence[RowSums] = ()
    phases: Sequence[Tensor] = ()

    @property
    def sums(self) -> Sequence[Tensor]:
        """The sums of products: ``total``, or its phases."""
        return self.phases or (self.total,)

    @property
    def args(self) -> list[Tensor]:
        end = self.epilogue
        added = [] if end.residual is None else [end.residual.x]
        constants = [*end.args[:1], *(rows.weights for rows in self.rows[:1])]
        # The other constants before those that a step may add.
        return [self.x, *added, self.w, *constants, *end.args[1:], *end.outputs]

    def place_results(
        self,
        s: te.Schedule,
        at: IterVar,
        env: Environment,
        copies: int = 1,
        added_copies: int = 1,
    ) -> None:
        """Compute the total and the stages of the epilogue at the output axis ``at``, in
        ``copies``: with several, the next tile accumulates while the previous one is requantized
        and stored. ``added_copies`` of an addition's other operand are held at a time.
        """
        stages = self.epilogue.stages
        for tensor in (*self.sums, *stages):
            s[tensor].set_scope(env.acc_scope)
            s[tensor].compute_at(s[self.epilogue.y], at)
            if copies > 1:
                s[tensor].double_buffer(copies)
        for tensor in stages:
            s[tensor].pragma(s[tensor].leaves[0], env.alu)
        if self.epilogue.residual is not None:
            added = (added_copies, copies)
            self.epilogue.residual.place(s, self.epilogue.y, at, env, added)
        for rows in self.rows:
            rows.place(s, self.epilogue.y, at, copies, env)
        if copies > 1:
            # Tiles of all sizes rotate through the same copies.
            outside = self._outside(s)
            for stage in s.stages:
                if stage.scope == env.acc_scope and stage.is_computed_at(at):
                    stage.store_at(outside)

    def place_constants(self, s: te.Schedule, at: IterVar | None, env: Environment) -> None:
        """Load bias or parameters at the output axis ``at``, or at the start if None; constants
        that all channels share are always loaded at the start.
        """
        epilogue = self.epilogue
        for shared in epilogue.shared:
            s[shared].set_scope(env.acc_scope)
            s[shared].pragma(shared.op.axis[0], env.dma_copy)
        for tensor in (*epilogue.loaded, *epilogue.prepared):
            s[tensor].set_scope(env.acc_scope)
            if at is not None:
                s[tensor].compute_at(s[epilogue.y], at)
            how = env.alu if tensor in epilogue.prepared else env.dma_copy
            s[tensor].pragma(s[tensor].op.axis[0], how)

    def place_operands(
        self,
        s: te.Schedule,
        x_at: IterVar,
        w_at: IterVar,
        step: IterVar | None,
        copies: tuple[int, int],
        env: Environment,
        keeps_x: bool = False,
    ) -> None:
        """Load tiles of x and w into ``copies`` buffers each, at each ``step`` of the sum or, if
        None, once per output tile, at the output axes ``x_at`` and ``w_at``. With ``keeps_x``, only
        the first output tile loads x, step by step, and the others at the same outer axes reuse it.
        """
        operands = ((self.x_buf, env.inp_scope, x_at), (self.w_buf, env.wgt_scope, w_at))
        y = s[self.epilogue.y]
        for (tensor, scope, at), held in zip(operands, copies, strict=True):
            s[tensor].set_scope(scope)
            keeps = keeps_x and tensor is self.x_buf
            if step is None:
                s[tensor].compute_at(y, at)
            else:
                s[tensor].compute_at(s[self.total], step)
                # Steps of consecutive tiles rotate through the same copies.
                s[tensor].store_at(self._outside(s), y, keeps)
            s[tensor].pragma(s[tensor].op.axis[0], env.dma_copy)
            if held > 1 and not keeps:
                s[tensor].double_buffer(held)

    def _outside(self, s: te.Schedule) -> IterVar:
        """The axis of the output directly outside of the one at which the total is computed."""
        tile = s[self.total].attach
        assert tile is not None
        axis = s[self.epilogue.y].axis_around(tile[1])
        assert axis is not None
        return axis


def weight_operand(
    shape: tuple[int, ...], name: str, as_int4: bool, env: Environment
) -> tuple[Tensor, Tensor]:
    """Weights in DRAM, wgt_dtype or with ``as_int4`` int4, and their buffer in the scratchpad."""
    if not as_int4:
        w = te.placeholder(shape, name, env.wgt_dtype)
        return w, te.compute(shape, lambda *i: w(*i), f"{name}_buf")
    packed = te.placeholder(shape, name, "int4")
    return packed, te.compute(shape, lambda *i: packed(*i).astype(env.wgt_dtype), f"{name}_buf")


def weight_memory(as_int4: bool, config: Config) -> TileMemory:
    """The elements of weights in DRAM."""
    return config.memory(Memory.WGT_4BIT if as_int4 else Memory.WGT)


def reduce_axes(**extents: int) -> tuple[IterVar, ...]:
    """Reduction axes, given by name and extent."""
    return tuple(te.reduce_axis((0, extent), name) for name, extent in extents.items())


def term_axis(terms: int) -> tuple[IterVar, ...]:
    """The axis over the terms of weights; empty for single-term weights."""
    return reduce_axes(term=terms) if terms > 1 else ()


def of_term(tap: Expr, terms: int, term: Sequence[IterVar]) -> Expr:
    """Index of a ``term`` (see `term_axis`) of the weight at ``tap``; the ``terms`` of a weight are
    adjacent.
    """
    return tap * terms + term[0] if term else tap
