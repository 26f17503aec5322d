"""Divides consecutive regions into parts along their outermost loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from amaranth_vta.sw.compiler.nest.ir import (
    For,
    LoweringError,
    NestBuffer,
    Region,
    Stmt,
    assigns,
    copied,
    reads,
    seq,
    walk,
    written_buffers,
)
from amaranth_vta.sw.compiler.te.expr import Access, Affine, Var


def divided(regions: Sequence[Stmt], parts: int, name: str) -> list[Stmt]:
    """``regions``, which read the buffer ``name``, in up to ``parts`` parts, each with its share of
    every region.

    Raises `LoweringError` if the regions are not element by element operations in the same loops.
    """
    found = [region for region in regions if isinstance(region, Region)]
    if len(found) < len(regions) or not _by_element(found):
        raise LoweringError(
            f"stagger of {name}: the operations on it are not element by element in the same loops"
        )
    shares = [_shares(region.body, parts) for region in found]
    return [
        seq(*(Region(region.kind, share) for region, share in zip(found, part, strict=True)))
        for part in zip(*shares, strict=True)
    ]


def _shares(stmt: Stmt, parts: int) -> list[Stmt]:
    """Up to ``parts`` parts of ``stmt``, along its loops from the outermost inward."""
    if parts == 1 or not isinstance(stmt, For):
        return [stmt]
    found, count = list[Stmt](), min(parts, stmt.extent)
    for number in range(count):
        begin, end = (stmt.extent * item // count for item in (number, number + 1))
        if end - begin == 1:
            body = copied(stmt.body, {stmt.var: Affine({}, begin)}, {})
            found += _shares(body, parts // count)
        else:
            var = Var(stmt.var.name)
            body = copied(stmt.body, {stmt.var: Affine({var: 1}, begin)}, {})
            found.append(replace(stmt, var=var, extent=end - begin, body=body))
    return found


def _by_element(regions: Sequence[Stmt]) -> bool:
    """Whether the regions have the same loops, and all access each buffer that one of them writes
    at one index.
    """
    written = set[NestBuffer]().union(*map(written_buffers, regions))
    loops = [[part for part in walk(region) if isinstance(part, For)] for region in regions]
    extents = [loop.extent for loop in loops[0]]
    if any([loop.extent for loop in own] != extents for own in loops):
        return False
    common = [Var(f"i{depth}") for depth in range(len(extents))]
    places = dict[NestBuffer, list[Affine]]()
    for region, own in zip(regions, loops, strict=True):
        values = {loop.var: Affine({var: 1}) for loop, var in zip(own, common, strict=True)}
        for access in _accesses(region):
            if access.source not in written:
                continue
            forms = [Affine.of(index) for index in access.indices]
            place = [form.replace(values) for form in forms if form is not None]
            first = places.setdefault(access.source, place)
            if len(place) < len(forms) or not all(map(Affine.same, first, place)):
                return False
    return True


def _accesses(stmt: Stmt) -> Iterator[Access]:
    for part in assigns(stmt):
        yield Access(part.buffer, part.indices)
        yield from reads(part)
