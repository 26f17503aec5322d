"""Lets a result share the storage of an operand whose last read is at the same index: the ALU
operation then overwrites its operand instead of a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.nest.ir import (
    Allocate,
    Assign,
    LoopNest,
    LoweringError,
    NestBuffer,
    Seq,
    Stmt,
    reads,
    rebuild,
    sources,
    walk,
    written_buffers,
)
from amaranth_vta.sw.compiler.te.expr import Access, Affine, Expr
from amaranth_vta.sw.compiler.te.traverse import rebuild as rebuild_expr

from .support.alu_chain import chain


def share_storage(nest: LoopNest, _: Config) -> LoopNest:
    """Merge pairs of buffers in ``nest`` that can share storage."""
    return replace(nest, body=_visit(nest.body))


def _visit(stmt: Stmt) -> Stmt:
    if isinstance(stmt, Allocate) and stmt.buffer.scope == "acc":
        while (shared := _share(stmt)) is not None:
            stmt = shared
    return rebuild(stmt, _visit)


def _share(stmt: Allocate) -> Allocate | None:
    """``stmt``, with a buffer allocated in the same iteration merged into its own; None if there is
    no such buffer.
    """
    old = stmt.buffer
    candidates = [a for a in _same_iteration(stmt.body) if _kind(a.buffer) == _kind(old)]
    if not candidates:
        return None
    places, uses = _uses(old, stmt.body)
    for inner in candidates:
        first = places[id(inner)]
        if _takes_over(old, inner.buffer, [use for use in uses if use.place > first]):
            old.copies = max(old.copies, inner.buffer.copies)
            return replace(stmt, body=_merge(stmt.body, inner, old))
    return None


class _Use(NamedTuple):
    """An assignment, its place in program order, and its reads of a buffer."""

    place: int
    part: Assign
    reads: list[Access]


def _uses(old: NestBuffer, stmt: Stmt) -> tuple[dict[int, int], list[_Use]]:
    """The places of the allocations in ``stmt`` by identity, and, in program order, the assignments
    that read or write ``old`` or fill a rolling buffer.
    """
    places: dict[int, int] = {}
    uses = []
    for place, part in enumerate(walk(stmt)):
        if isinstance(part, Allocate):
            places[id(part)] = place
        elif isinstance(part, Assign):
            found = [access for access in reads(part) if access.source is old]
            if found or part.buffer is old or part.buffer.rolling:
                uses.append(_Use(place, part, found))
    return places, uses


def _kind(buffer: NestBuffer) -> tuple[object, ...]:
    return buffer.scope, buffer.shape, buffer.dtype, buffer.rolling, buffer.bank


def _same_iteration(stmt: Stmt) -> Iterator[Allocate]:
    """The allocations in ``stmt`` that are not within one of its loops."""
    if isinstance(stmt, Allocate):
        yield stmt
        yield from _same_iteration(stmt.body)
    if isinstance(stmt, Seq):
        for part in stmt.body:
            yield from _same_iteration(part)


def _takes_over(old: NestBuffer, new: NestBuffer, uses: Iterable[_Use]) -> bool:
    """Whether, in the ``uses`` after ``new`` is allocated, ``old`` is read only to compute the
    element of ``new`` at the same index.
    """
    is_read = False
    # Rolling buffers are filled within their allocations, turn by turn: the turn of `old` that was
    # filled last, and the one that `new` took over last.
    filled: Expr | None = None
    taken: Expr | None = None
    for _, part, found in uses:
        if part.buffer is old:
            if not old.rolling or _same(part.indices[0], taken):
                return False
            filled = part.indices[0]
            continue
        if part.buffer is new and new.rolling:
            taken = part.indices[0]
        if not found:
            continue
        if part.buffer is not new and old.rolling:
            turns = [access.indices[0] for access in found]
            if all(_same(turn, filled) and not _same(turn, taken) for turn in turns):
                continue
        if part.buffer is not new or part.updates or not _replaces_head(part, old):
            return False
        target, source = new.flat(part.indices), old.flat(found[0].indices)
        if target is None or source is None or not target.same(source):
            return False
        is_read = True
    return is_read


def _same(first: Expr, second: Expr | None) -> bool:
    forms = Affine.of(first), None if second is None else Affine.of(second)
    return forms[0] is not None and forms[1] is not None and forms[0].same(forms[1])


def _replaces_head(part: Assign, old: NestBuffer) -> bool:
    """Whether the chain of ALU operations begins with ``old`` and does not read it again."""
    if sum(access.source is old for access in reads(part)) != 1:
        return False
    try:
        first, _ = chain(part.value, lambda access: access.source is old, part.label.stage)
    except LoweringError:
        return False  # map_to_alu reports it
    return isinstance(first, Access) and first.source is old


def _merge(stmt: Stmt, inner: Allocate, old: NestBuffer) -> Stmt:
    new = inner.buffer
    if stmt is inner:
        return _merge(inner.body, inner, old)
    if new not in written_buffers(stmt) and new not in sources(stmt):
        return stmt
    if isinstance(stmt, Assign):
        buffer = old if stmt.buffer is new else stmt.buffer
        return replace(stmt, buffer=buffer, value=_renamed(stmt.value, new, old))
    return rebuild(stmt, lambda part: _merge(part, inner, old))


def _renamed(value: Expr, new: NestBuffer, old: NestBuffer) -> Expr:
    value = rebuild_expr(value, lambda part: _renamed(part, new, old))
    if isinstance(value, Access) and value.source is new:
        return Access(old, value.indices)
    return value
