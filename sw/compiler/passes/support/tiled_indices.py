"""The assignments of a region, and the tiles that their indices iterate over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations

from amaranth_vta.sw.compiler.nest.ir import (
    Assign,
    For,
    LoweringError,
    NestBuffer,
    Region,
    Seq,
    Stmt,
)
from amaranth_vta.sw.compiler.te.expr import Affine, Binary, Compare, Const, Expr, Var
from amaranth_vta.sw.compiler.te.traverse import substitute


def assignments(region: Stmt) -> list[tuple[list[For], Assign]]:
    """Every assignment of a region, with the region's loops around it, outermost first."""
    match region:
        case Assign():
            return [([], region)]
        case Seq():
            return [item for part in region.body for item in assignments(part)]
        case For():
            return [([region, *loops], assign) for loops, assign in assignments(region.body)]
        case Region():
            return assignments(region.body)
    raise LoweringError(f"{type(region).__name__} within a region that becomes one instruction")


def merged_loops(loops: Sequence[For], assign: Assign) -> tuple[list[For], Assign]:
    """``loops`` and ``assign``, with split loops merged again if a condition depends on them."""
    forms = [
        form for value in (*assign.indices, assign.value) for form in _sums(value) if form.terms
    ]
    for outer, inner in permutations(loops, 2):
        steps = [(f.terms.get(outer.var, 0), f.terms.get(inner.var, 0)) for f in forms]
        if all(far == inner.extent * near for far, near in steps) and _are_compared(
            assign.value, outer.var
        ):
            fewer = [loop for loop in loops if loop is not outer and loop is not inner]
            joint = replace(inner, extent=outer.extent * inner.extent)
            gone: dict[Var, Affine] = {outer.var: Affine({})}
            indices = tuple(substitute(index, gone) for index in assign.indices)
            value = substitute(assign.value, gone)
            return merged_loops([*fewer, joint], replace(assign, indices=indices, value=value))
    return list(loops), assign


def _sums(value: Expr) -> Iterator[Affine]:
    form = Affine.of(value)
    if form is not None:
        yield form
    for child in value.children():
        yield from _sums(child)


def _are_compared(value: Expr, var: Var) -> bool:
    if isinstance(value, Compare):
        return any(var in form.terms for form in _sums(value))
    return any(_are_compared(child, var) for child in value.children())


def flat_index(buffer: NestBuffer, indices: Sequence[Expr], stage: str) -> Affine:
    """The scalar at ``indices``, row-major; raises `LoweringError`, naming the index, if one is not
    affine.
    """
    form = buffer.flat(indices)
    if form is None:
        for position, index in enumerate(indices):
            if Affine.of(index) is None:
                raise LoweringError(
                    f"{stage}: index {index} of dimension {position} of {buffer.name} is not "
                    f"affine{_how_to_split(index)}"
                )
    assert form is not None
    return form


def _how_to_split(index: Expr) -> str:
    match index:
        case Binary(op="//" | "%", left=Affine() as left, right=Const() as right):
            if len(left.terms) == 1:
                return f": split {next(iter(left.terms))} by {right}"
    return ", a sum of axes times constants"


def tile_loops(loops: Sequence[For], form: Affine, scalars: int) -> dict[Var, int] | None:
    """The loops, with their factors, by which ``form`` iterates over the ``scalars`` scalars of one
    tile; None if there are none.
    """
    found: dict[Var, int] = {}
    reached = 1
    while reached < scalars:
        step = [loop for loop in loops if form.terms.get(loop.var) == reached]
        step = [loop for loop in step if loop.var not in found]
        if len(step) != 1 or scalars % (reached * step[0].extent):
            return None
        found[step[0].var] = reached
        reached *= step[0].extent
    return found


def element_index(form: Affine, tile: Mapping[Var, int], scalars: int) -> Affine | None:
    """``form`` in units of tiles, without the loops within a ``tile`` (with their factors); None if
    it does not step by whole tiles.
    """
    outer = {var: factor for var, factor in form.terms.items() if var not in tile}
    if any(form.terms.get(var, 0) != factor for var, factor in tile.items()):
        return None
    if form.const % scalars or any(factor % scalars for factor in outer.values()):
        return None
    return Affine({v: f // scalars for v, f in outer.items()}, form.const // scalars)
