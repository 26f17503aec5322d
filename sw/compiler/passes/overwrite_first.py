"""Lets the first products of a sum overwrite the accumulators, which then need no reset.

The first iteration of each accumulating loop is peeled: it overwrites, and the others add. This
needs the extension OVERWRITE. Where a loop allocates buffers the reset stays, since the copies of a
buffer do not rotate across two loops. The exception is data computed ahead: software pipelining
peels the first iterations of its loops anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.nest.ir import (
    Allocate,
    Assign,
    For,
    LoopNest,
    NestBuffer,
    Region,
    Seq,
    Stmt,
    allocations,
    assigns,
    copied,
    rebuild,
    seq,
    walk,
)
from amaranth_vta.sw.compiler.te.expr import Affine, Const, Var


def overwrite_first(nest: LoopNest, config: Config) -> LoopNest:
    """Remove the resets of ``nest`` that overwriting makes unnecessary."""
    return replace(nest, body=_visit(nest.body)) if config.overwrite else nest


def _visit(stmt: Stmt) -> Stmt:
    stmt = rebuild(stmt, _visit)
    if not isinstance(stmt, Seq):
        return stmt
    parts: list[Stmt] = []
    rest = list(stmt.body)
    while rest:
        buffer = _reset_buffer(rest[0])
        updates = _updates_of(buffer, rest[1:])
        changed = _overwriting(rest[0], updates)
        if changed is not None:
            parts += changed
            del rest[: len(updates) + 1]
        elif buffer is not None and (peeled := _peeled(rest[0], buffer, rest[1:])) is not None:
            parts += peeled
            del rest[:2]
        else:
            parts.append(rest.pop(0))
    return seq(*parts)


def _peeled(reset: Stmt, buffer: NestBuffer, rest: Sequence[Stmt]) -> list[Stmt] | None:
    """Peel the first iteration off the loop that begins ``rest``, with updates of ``buffer`` that
    overwrite it. None if that is impossible.
    """
    if not rest or not isinstance(rest[0], For):
        return None
    updates = [part for part in assigns(rest[0]) if part.buffer is buffer]
    peeled = _beginning(reset, buffer, len(updates), rest[0])
    return None if peeled is None else [peeled]


def _can_be_peeled(loop: For, buffer: NestBuffer) -> bool:
    """Whether the iterations of ``loop`` add to the same elements of ``buffer``, and its first one
    may be separate.
    """
    allocated = allocations(loop)
    if allocated and not any(part.buffer.ahead for part in allocated):
        return False
    forms = [buffer.flat(part.indices) for part in assigns(loop) if part.buffer is buffer]
    return all(form is not None and loop.var not in form.terms for form in forms)


def _beginning(reset: Stmt, buffer: NestBuffer, count: int, stmt: Stmt) -> Stmt | None:
    """``stmt``, with all ``count`` updates of ``buffer`` in the first iterations of its loops
    overwriting it; None if they cannot overwrite, or are not adjacent.
    """
    match stmt:
        case Allocate():
            body = _beginning(reset, buffer, count, stmt.body)
            return None if body is None else replace(stmt, body=body)
        case For() if _can_be_peeled(stmt, buffer):
            body = copied(stmt.body, {stmt.var: Affine({})}, {})
            first = _beginning(reset, buffer, count, body)
            return None if first is None else seq(first, _others(stmt))
        case Seq():
            for number, part in enumerate(stmt.body):
                before = stmt.body[:number]
                updates = _updates_of(buffer, stmt.body[number:])
                changed = _overwriting(reset, updates) if len(updates) == count else None
                if changed is not None:
                    return seq(*before, *changed, *stmt.body[number + count :])
                inner = _beginning(reset, buffer, count, part)
                if inner is not None:
                    return seq(*before, inner, *stmt.body[number + 1 :])
    return None


def _reset_buffer(stmt: Stmt) -> NestBuffer | None:
    """The buffer that ``stmt`` resets for a matrix product; None if it does something else."""
    if not isinstance(stmt, Region) or stmt.kind != "gemm":
        return None
    first, *others = assigns(stmt)
    is_reset = not others and isinstance(first.value, Const) and first.value.value == 0
    return first.buffer if is_reset and not first.updates else None


def _updates_of(buffer: NestBuffer | None, parts: Sequence[Stmt]) -> list[Stmt]:
    """The leading statements of ``parts`` that only update ``buffer``."""

    def updates(stmt: Stmt) -> bool:
        return [part.buffer for part in assigns(stmt)] == [buffer] and not allocations(stmt)

    return list(takewhile(updates, parts))


def _overwriting(reset: Stmt, updates: Sequence[Stmt]) -> list[Stmt] | None:
    """``updates``, with the first update of each element that ``reset`` clears overwriting it.

    None if the first updates cannot be separated from the others, or take several instructions.
    """
    found = _elements(reset) if updates else None
    if found is None:
        return None
    to_come, around = found
    changed: list[Stmt] = []
    for stmt in updates:
        found = _elements(stmt)
        if found is None or found[1] != around:
            return None
        updated = found[0]
        if not (updated <= to_come or updated.isdisjoint(to_come)):
            return None
        first = _first(stmt) if updated <= to_come else stmt
        if first is None:
            return None
        changed.append(first)
        to_come -= updated
    return None if to_come else changed


def _elements(stmt: Stmt) -> tuple[set[int], dict[Var, int]] | None:
    """The elements that the only assignment in ``stmt`` sets, and the index terms of the loops
    around ``stmt``; None if the index is not affine.
    """
    (assign,) = assigns(stmt)
    form = assign.buffer.flat(assign.indices)
    extents = {part.var: part.extent for part in walk(stmt) if isinstance(part, For)}
    if form is None:
        return None
    found, around = np.array([form.const]), dict(form.terms)
    for var in form.terms.keys() & extents.keys():
        found = np.add.outer(found, around.pop(var) * np.arange(extents[var])).reshape(-1)
    return set(found.tolist()), around


def _first(stmt: Stmt) -> Stmt | None:
    outputs = _outputs(stmt)
    match stmt:
        case For() if stmt.var in outputs:
            body = _first(stmt.body)
            return None if body is None else replace(stmt, body=body)
        case For():
            begin = _first(copied(stmt.body, {stmt.var: Affine({})}, {}))
            return None if begin is None else seq(begin, _others(stmt))
        case Region():
            summed = [p for p in walk(stmt) if isinstance(p, For) and p.var not in outputs]
            return _beginning_at_zero(stmt, summed) if summed else None
    return None


def _outputs(stmt: Stmt) -> set[Var]:
    """The variables in the index that the only assignment in ``stmt`` updates."""
    (update,) = assigns(stmt)
    form = update.buffer.flat(update.indices)
    return set() if form is None else set(form.terms)


def _others(loop: For) -> Stmt:
    """``loop`` without its first iteration."""
    if loop.extent == 2:
        return copied(loop.body, {loop.var: Affine({}, 1)}, {})
    var = Var(loop.var.name)
    body = copied(loop.body, {loop.var: Affine({var: 1}, 1)}, {})
    return replace(loop, var=var, extent=loop.extent - 1, body=body)


def _beginning_at_zero(region: Region, summed: Sequence[For]) -> Region:
    """``region``, which sums over the loops ``summed``, with its reset moved inside, so that both
    become one instruction.
    """
    variables = {loop.var for loop in summed}

    def cleared(stmt: Stmt) -> Stmt:
        match stmt:
            case Assign():
                return replace(stmt, value=Const(0, stmt.buffer.dtype))
            case For() if stmt.var in variables:
                return cleared(stmt.body)
        return rebuild(stmt, cleared)

    reset = copied(cleared(region.body), dict.fromkeys(variables, Affine({})), {})
    return replace(region, body=seq(reset, region.body))
