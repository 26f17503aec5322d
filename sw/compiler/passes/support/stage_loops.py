"""The loops of a stage after splits and fuses of its axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from amaranth_vta.sw.compiler.nest.ir import LoweringError, NestBuffer
from amaranth_vta.sw.compiler.te.expr import Affine, Expr, IterVar, Var
from amaranth_vta.sw.compiler.te.schedule import Fuse, Schedule, Split, Stage
from amaranth_vta.sw.compiler.te.traverse import accesses

from .partition import Limit, limits_of

# First element and extent of the region, per dimension.
Bounds = list[tuple[Affine, int]]


@dataclass
class Atom:
    """A loop. A fused axis remains several loops, so that indices stay affine."""

    var: Var
    extent: int
    axis: IterVar


@dataclass
class StageLoops:
    """The loops of a stage that compute one region; its axes are functions of the loops."""

    stage: Stage
    order: list[Atom]
    first: set[Var]
    last: set[Var]
    values: dict[Var, Affine]
    limits: list[Limit]
    buffer: NestBuffer
    # Indices into `buffer` as functions of the loops.
    indices: list[Affine] = field(default_factory=list)


def stage_loops(stage: Stage, body: Expr, bounds: Bounds, buffer: NestBuffer) -> StageLoops:
    """The loops that compute the region ``bounds`` of ``stage``, by ``body``, into ``buffer``.

    Raises `LoweringError` for a split of a fused axis that does not yield whole loops, or whose
    first part is larger.
    """
    atoms: dict[IterVar, list[Atom]] = {}
    parts: dict[Var, Affine] = {}
    limits: list[Limit] = []
    extents = [extent for _, extent in bounds]
    for axis, extent in zip(stage.op.axis, extents, strict=True):
        atoms[axis] = [Atom(Var(axis.name), extent, axis)]
    for axis in stage.reduce_axis:
        assert axis.extent is not None
        atoms[axis] = [Atom(Var(axis.name), axis.extent, axis)]
    roots = {axis: atoms[axis][0].var for axis in atoms}
    for relation in stage.relations:
        if isinstance(relation, Fuse):
            atoms[relation.fused] = atoms.pop(relation.outer) + atoms.pop(relation.inner)
        else:
            outer, inner = _split(stage, relation, atoms.pop(relation.parent), parts, limits)
            atoms[relation.outer], atoms[relation.inner] = outer, inner
    order: list[Atom] = []
    first, last = set(), set()
    for leaf in stage.leaves:
        group = [Atom(atom.var, atom.extent, leaf) for atom in atoms[leaf]]
        if leaf in stage.threads and sum(atom.extent > 1 for atom in group) > 1:
            raise LoweringError(
                f"{stage.name}.{leaf} is fused from several axes and cannot be a thread"
            )
        first.add(group[0].var)
        last.add(group[-1].var)
        order += group
    _check_first_parts(stage, order)
    relative = {axis: _expand(Affine({var: 1}), parts) for axis, var in roots.items()}
    values: dict[Var, Affine] = {}
    for axis, (begin, _) in zip(stage.op.axis, bounds, strict=True):
        values[axis] = relative[axis].plus(begin)
    for axis in stage.reduce_axis:
        values[axis] = relative[axis].plus(Affine({}, axis.begin))
    limits = [replace(limit, form=_expand(limit.form, parts)) for limit in limits]
    for limit in limits_of(body):
        form = limit.form.replace(values)
        # A limit that depends on outer loops stays a condition.
        if form.terms.keys() <= {atom.var for atom in order}:
            limits.append(replace(limit, form=form))
    return StageLoops(
        stage,
        order,
        first,
        last,
        values,
        limits,
        buffer,
        [relative[axis] for axis in stage.op.axis],
    )


def _check_first_parts(stage: Stage, order: list[Atom]) -> None:
    places = {atom.axis: place for place, atom in enumerate(order)}
    for split in stage.relations:
        if isinstance(split, Split) and split.first is not None:
            outer, inner = places.get(split.outer), places.get(split.inner)
            if outer is None or inner is None or outer > inner:
                raise LoweringError(
                    f"{stage.name}.{split.outer}, whose first part is larger, must be outside of "
                    f"{split.inner}, and neither may be split or fused"
                )


def limits_of_attached(
    loops: StageLoops, schedule: Schedule, bodies: Mapping[Stage, Expr]
) -> list[Limit]:
    """Limits of the stages computed within ``loops``, directly or in another such stage, for the
    loops around those stages.
    """
    found: dict[Stage, list[Limit]] = {}
    _find_attached(loops.stage, loops, loops.values, schedule, bodies, found)
    return [limit for limits in found.values() for limit in limits]


def _find_attached(
    reader: Stage,
    loops: StageLoops,
    indices: Mapping[Var, Affine],
    schedule: Schedule,
    bodies: Mapping[Stage, Expr],
    found: dict[Stage, list[Limit]],
) -> None:
    """Add to ``found`` the limits of the stages that ``reader`` reads, directly or not, if they are
    computed within ``loops``; ``indices`` are the values of the reader's axes.
    """
    for access in accesses(bodies[reader]):
        stage = schedule[access.source]
        axis = stage.axis_within(loops.stage)
        if stage in found or axis is None:
            continue
        values: dict[Var, Affine] = {
            own: form.replace(indices)
            for own, index in zip(stage.op.axis, access.indices, strict=True)
            if (form := Affine.of(index)) is not None
        }
        # Where padding begins, a smaller region of the padded stage is computed.
        computed = any(schedule[read.source].attach for read in accesses(bodies[stage]))
        found[stage] = [
            replace(limit, form=limit.form.replace(values), until=axis)
            for limit in limits_of(bodies[stage], pads_decide=computed)
            if limit.decides and limit.form.terms.keys() <= values.keys()
        ]
        _find_attached(stage, loops, values, schedule, bodies, found)


def _expand(form: Affine, parts: Mapping[Var, Affine]) -> Affine:
    while any(var in parts for var in form.terms):
        form = form.replace(parts)
    return form


def _split(
    stage: Stage,
    relation: Split,
    atoms: list[Atom],
    parts: dict[Var, Affine],
    limits: list[Limit],
) -> tuple[list[Atom], list[Atom]]:
    """The loops of the outer and of the inner axis of a split."""
    total = prod(atom.extent for atom in atoms)
    factor = relation.factor
    if factor is None:
        assert relation.nparts is not None
        factor = -(-total // relation.nparts)
    factor = min(factor, total)
    within = 1
    if relation.first is not None and len(atoms) > 1:
        raise LoweringError(
            f"{stage.name}.{relation.parent} is fused from several axes and cannot be split with a "
            "larger first part"
        )
    for position in reversed(range(len(atoms))):
        atom = atoms[position]
        if factor % within or (
            factor < within * atom.extent and position and atom.extent % (factor // within)
        ):
            break
        if factor > within * atom.extent:
            within *= atom.extent
            continue
        size = factor // within
        first = min(relation.first or size, atom.extent)
        rest = atom.extent - first
        outer = Atom(Var(relation.outer.name), 1 - (-rest // size), relation.outer)
        inner = Atom(Var(relation.inner.name), first, relation.inner)
        parts[atom.var] = Affine({outer.var: size, inner.var: 1})
        if rest % size:
            limits.append(Limit(Affine({atom.var: 1}), atom.extent - 1))
        if first > size:
            # Iterations of the inner loop that an earlier part has are left out.
            limits.append(Limit(Affine({inner.var: -1}), size - first, after=outer.var))
        return [*atoms[:position], outer], [inner, *atoms[position + 1 :]]
    extents = " x ".join(str(atom.extent) for atom in atoms)
    raise LoweringError(
        f"{stage.name}.{relation.parent} is fused from loops of {extents} and cannot be split by "
        f"{factor}: the parts would not be whole loops"
    )
