"""Placement of the stages of fused operators: accumulator banks and loads."""

from __future__ import annotations

from collections.abc import Iterable

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.tensor import Tensor

from .epilogue import Epilogue

# A tensor and one of the axes of its stage.
Place = tuple[Tensor, te.IterVar]


def place_stages(
    s: te.Schedule,
    tensors: Iterable[Tensor],
    at: Place,
    copies: int,
    bank: int | None,
    env: Environment,
) -> None:
    """Compute ``tensors``, a sum or stages of an epilogue, in accumulators at the place ``at``,
    with ``copies`` in rotation: all in ``bank`` or, if None, alternating between both banks.
    """
    for tensor in tensors:
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[at[0]], at[1])
        s[tensor].double_buffer(copies, bank)


def place_epilogue(s: te.Schedule, end: Epilogue, env: Environment) -> None:
    """Turn the stages of an epilogue into ALU operations, and load its constants at the start."""
    for tensor in end.stages:
        s[tensor].pragma(tensor.op.axis[0], env.alu)
    for tensor in (*end.loaded, *end.shared):
        place_load(s, tensor, env.acc_scope, None, 1, env)


def place_load(
    s: te.Schedule, tensor: Tensor, scope: str, at: Place | None, copies: int, env: Environment
) -> None:
    """Copy a ``tensor`` to ``scope`` at the place ``at``, with ``copies`` in rotation; if ``at`` is
    None, once at the start.
    """
    s[tensor].set_scope(scope)
    s[tensor].pragma(tensor.op.axis[0], env.dma_copy)
    if at is not None:
        s[tensor].compute_at(s[at[0]], at[1])
        s[tensor].double_buffer(copies)
