"""Every scratchpad buffer gets its place: after those within whose lifetime it lies."""

from __future__ import annotations

from dataclasses import replace

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.ir import Allocate, Buffer, Function, LoweringError, Stmt, rebuild
from amaranth_vta.sw.compiler.machine import scratchpad, tile_scalars


def allocate_scratchpads(function: Function, config: Config) -> Function:
    """``function`` with a base for each buffer.

    Raises `LoweringError` when a scratchpad is too small: which buffers it would hold, and what
    would fit.
    """
    return replace(function, body=_Allocator(config).visit(function.body, ()))


def elements(buffer: Buffer, config: Config) -> int:
    """Tiles that one copy of ``buffer`` takes."""
    return -(-buffer.scalars // tile_scalars(config, buffer.scope))


class _Allocator:
    def __init__(self, config: Config) -> None:
        self.config = config

    def visit(self, stmt: Stmt, live: tuple[Buffer, ...]) -> Stmt:
        """``live`` are the buffers that exist around ``stmt``, in the order of their bases."""
        if not isinstance(stmt, Allocate):
            return rebuild(stmt, lambda child: self.visit(child, live))
        buffer = stmt.buffer
        if buffer.scope == "dram":
            raise LoweringError(
                f"{buffer.name} is neither an argument nor in a scratchpad; give it a scope"
            )
        same = [other for other in live if other.scope == buffer.scope]
        base = sum(other.copies * elements(other, self.config) for other in same)
        size = buffer.copies * elements(buffer, self.config)
        depth = scratchpad(self.config, buffer.scope).depth
        if base + size > depth:
            raise LoweringError(self.overflow([*same, buffer], depth))
        # Buffers are shared by many statements, so this one is completed in place.
        buffer.base = base
        return replace(stmt, body=self.visit(stmt.body, (*live, buffer)))

    def overflow(self, buffers: list[Buffer], depth: int) -> str:
        parts = []
        for buffer in buffers:
            size = elements(buffer, self.config)
            times = f"{buffer.copies} x " if buffer.copies > 1 else ""
            parts.append(f"{buffer.name} {list(buffer.shape)} takes {times}{size}")
        scope, last = buffers[-1].scope, buffers[-1]
        used = sum(b.copies * elements(b, self.config) for b in buffers[:-1])
        room = (depth - used) // last.copies
        memory = scratchpad(self.config, scope)
        return (
            f"{scope} holds {depth} elements of {memory.element_bytes} bytes: {', '.join(parts)}; "
            f"at most {room} would fit for {last.name}"
        )
