"""Where the stages of a product stand in its schedule, whatever product it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import IterVar
from amaranth_vta.sw.compiler.te.tensor import Tensor

# A tensor, its scope, the axis of the output at which a tile is loaded, and tiles held at a time.
Operand = tuple[Tensor, str, IterVar, int]


def place_results(
    s: te.Schedule,
    y: Tensor,
    total: Tensor,
    stages: Sequence[Tensor],
    at: IterVar,
    in_turn: bool,
    env: Environment,
) -> None:
    """``total`` and the ``stages`` from it to ``y`` at the axis ``at`` of ``y``; with ``in_turn``
    the next tile accumulates while one is post-processed and stored."""
    for tensor in (total, *stages):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], at)
        if in_turn:
            s[tensor].double_buffer()
    for tensor in stages:
        s[tensor].pragma(s[tensor].op.axis[0], env.alu)


def place_constants(
    s: te.Schedule, y: Tensor, constants: Tensor, at: IterVar, in_turn: bool, env: Environment
) -> None:
    """Bias or parameters: loaded at the axis ``at`` of ``y``, or ``in_turn`` at the beginning."""
    s[constants].set_scope(env.acc_scope)
    if not in_turn:
        s[constants].compute_at(s[y], at)
    s[constants].pragma(s[constants].op.axis[0], env.dma_copy)


def place_operands(
    s: te.Schedule,
    y: Tensor,
    total: Tensor,
    operands: Iterable[Operand],
    step: IterVar | None,
    env: Environment,
) -> None:
    """Tiles of the operands: loaded where each says, or for each ``step`` of ``total``'s sum."""
    for tensor, scope, at, copies in operands:
        s[tensor].set_scope(scope)
        if step is None:
            s[tensor].compute_at(s[y], at)
        else:
            s[tensor].compute_at(s[total], step)
        s[tensor].pragma(s[tensor].op.axis[0], env.dma_copy)
        if copies > 1:
            s[tensor].double_buffer(copies)
