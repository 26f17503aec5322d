"""Assign a scratchpad address to every buffer, after the buffers live at its allocation.

Where GEMM and ALU can overlap, copies of accumulator buffers alternate between the two banks, the
lower and upper half of their scratchpad, so that the units do not compete for a port. If the
schedule selects a bank for a buffer, all its copies are in that bank.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from operator import add

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import AluOp
from amaranth_vta.sw.compiler.nest.ir import (
    Allocate,
    Kernel,
    LoopNest,
    LoweringError,
    NestBuffer,
    Stmt,
    carried_slots,
    rebuild,
    walk,
)
from amaranth_vta.sw.compiler.nest.scopes import copy_elements, scratchpad, tile_scalars

# Smaller sources are not placed at the end of their bank: layers then share fewer micro-ops, which
# costs about as many cycles as reading these sources from the copy saves.
_SOURCES_WORTH_PLACING = 16


def allocate_scratchpads(nest: LoopNest, config: Config) -> LoopNest:
    """Assign a base to each buffer of ``nest``.

    Raises `LoweringError` when a scratchpad is too small, with the size of each buffer in it and
    the size that would fit.
    """
    if config.overlap and _alternates(nest):
        try:
            sources = _alternating_sources(nest, config)
            return replace(nest, body=_Allocator(config, True, sources).visit(nest.body, ()))
        except LoweringError:
            pass  # too large for the banks; it may fit without banks
    return replace(nest, body=_Allocator(config, False).visit(nest.body, ()))


def elements_used(nest: LoopNest, scope: str, config: Config) -> int:
    """End of the last buffer of ``scope``, in elements, in an allocated nest."""
    buffers = [part.buffer for part in walk(nest.body) if isinstance(part, Allocate)]
    ends = (
        buffer.base + buffer.copies * _copy_room(buffer, config)
        for buffer in buffers
        if buffer.scope == scope and buffer.base is not None
    )
    return max(ends, default=0)


def _slots(buffer: NestBuffer, config: Config) -> int:
    """Places for the carried elements of a buffer in each of its copies; 0 if it carries none."""
    if not buffer.carried:
        return 0
    carried = buffer.carried // tile_scalars(config, buffer.scope)
    return carried_slots(buffer.copies, buffer.period, copy_elements(buffer, config), carried)


def _copy_room(buffer: NestBuffer, config: Config) -> int:
    """Elements that a copy of ``buffer`` occupies."""
    step = buffer.carried // tile_scalars(config, buffer.scope)
    below = max(_slots(buffer, config) - 1, 0) * step
    return below + copy_elements(buffer, config)


def _alternates(nest: LoopNest) -> bool:
    """Whether some accumulators have several copies, and all such buffers have an even number of
    copies or a fixed bank.
    """
    buffers = [part.buffer for part in walk(nest.body) if isinstance(part, Allocate)]
    several = [buffer for buffer in buffers if buffer.scope == "acc" and not _alone(buffer)]
    return bool(several) and all(
        buffer.bank is not None or not buffer.copies % 2 for buffer in several
    )


def _alone(buffer: NestBuffer) -> bool:
    return buffer.copies == 1 and buffer.bank is None


def _alternating_sources(nest: LoopNest, config: Config) -> set[int]:
    """The buffers, by identity, whose copies alternate between the banks and that the ALU reads as
    second operands, one element for each micro-op.
    """
    uops = [part.uop for part in walk(nest.body) if isinstance(part, Kernel)]
    found = [
        uop.src.buffer
        for uop in uops
        if uop.alu not in (None, AluOp.REQUANTIZE, AluOp.LOOKUP) and uop.src is not None
    ]
    return {
        id(buffer)
        for buffer in found
        if buffer.bank is None
        and not _alone(buffer)
        and copy_elements(buffer, config) >= _SOURCES_WORTH_PLACING
    }


class _Allocator:
    """Assigns base addresses. With ``banked``, accumulators with a single copy and no bank are
    placed at the end of the upper bank: other buffers then start at the same elements in all
    layers, so that layers share micro-ops. ``sources`` are placed below them and, in the lower
    bank, at the same distance from its end: the last accumulators have a copy, from which the ALU
    reads a source together with a destination in the same bank.
    """

    def __init__(self, config: Config, banked: bool, sources: Set[int] = frozenset()) -> None:
        self.config = config
        self.banked = banked
        self.sources = sources

    def at_end(self, buffer: NestBuffer) -> bool:
        """Whether ``buffer``, of accumulators in banks, is placed at the end of a bank."""
        return _alone(buffer) or id(buffer) in self.sources

    def elements(self, buffer: NestBuffer) -> int:
        """Elements that ``buffer`` occupies from its base on; with banks, elements of one copy."""
        size = _copy_room(buffer, self.config)
        if self.banked and buffer.scope == "acc" and buffer.bank is None:
            return -(-buffer.copies // 2) * size
        return buffer.copies * size

    def end(self, buffers: Sequence[NestBuffer], bank: int, depth: int) -> int:
        """End of ``buffers`` in a bank, relative to the bank's start; excludes buffers that are
        placed at the end of the bank.
        """
        ends = (
            (other.base or 0) % (depth // 2) + self.elements(other)
            for other in buffers
            if other.bank in (None, bank) and not self.at_end(other)
        )
        return max(ends, default=0)

    def visit(self, stmt: Stmt, live: tuple[NestBuffer, ...]) -> Stmt:
        """Allocate within ``stmt``; ``live`` are the buffers live around it, in order of their
        bases.
        """
        if not isinstance(stmt, Allocate):
            return rebuild(stmt, lambda child: self.visit(child, live))
        buffer = stmt.buffer
        if buffer.scope == "dram":
            raise LoweringError(
                f"{buffer.name} is neither an argument nor in a scratchpad; give it a scope"
            )
        same = [other for other in live if other.scope == buffer.scope]
        depth = scratchpad(self.config, buffer.scope).depth
        in_banks = self.banked and buffer.scope == "acc"
        # Updated in place: many statements refer to the buffer.
        at_end = sum(self.elements(other) for other in (*same, buffer) if self.at_end(other))
        if not in_banks:
            buffer.base = sum(map(self.elements, same))
            full = buffer.base + self.elements(buffer) > depth
        else:
            banks = (0, 1) if buffer.bank is None else (buffer.bank,)
            buffer.base = max(self.end(same, bank, depth) for bank in banks)
            buffer.base += (buffer.bank or 0) * (depth // 2)
            if self.at_end(buffer):
                buffer.base = (depth if _alone(buffer) else depth // 2) - at_end
            in_lower = any(id(other) in self.sources for other in (*same, buffer))
            ends = (self.end((*same, buffer), bank, depth) for bank in (0, 1))
            full = max(map(add, ends, (at_end * in_lower, at_end))) > depth // 2
        if full:
            raise LoweringError(self.overflow([*same, buffer], depth))
        size = copy_elements(buffer, self.config)
        alternates = in_banks and buffer.bank is None
        buffer.pitch = depth // 2 if alternates else _copy_room(buffer, self.config)
        buffer.slots = _slots(buffer, self.config)
        pairs = alternates and (buffer.copies > 2 or buffer.rolling)
        buffer.pair = size if pairs or buffer.slots else 0
        return replace(stmt, body=self.visit(stmt.body, (*live, buffer)))

    def overflow(self, buffers: list[NestBuffer], depth: int) -> str:
        parts = []
        for buffer in buffers:
            size = _copy_room(buffer, self.config)
            times = f"{buffer.copies} x " if buffer.copies > 1 else ""
            parts.append(f"{buffer.name} {list(buffer.shape)} takes {times}{size}")
        scope, last = buffers[-1].scope, buffers[-1]
        used = sum(b.copies * _copy_room(b, self.config) for b in buffers[:-1])
        room = (depth - used) // last.copies
        memory = scratchpad(self.config, scope)
        return (
            f"{scope} holds {depth} elements of {memory.element_bytes} bytes: {', '.join(parts)}; "
            f"at most {room} would fit for {last.name}"
        )
