"""From a schedule to a loop nest in which every loop and every buffer has a constant extent.

Stages are placed from the outputs back: the region of a stage is what the loops that read it,
already there, need of it. Where a split does not divide, the loop is cut into ranges of
iterations that are all alike, so that tails are nests of their own and no guards are left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from amaranth_vta.sw.compiler.dtypes import Interval
from amaranth_vta.sw.compiler.expr import Access, Affine, Const, Expr, IterVar, Reduce, Var
from amaranth_vta.sw.compiler.ir import (
    Allocate,
    Assign,
    Buffer,
    For,
    Function,
    Label,
    LoweringError,
    Region,
    Seq,
    Stmt,
    map_expressions,
    seq,
)
from amaranth_vta.sw.compiler.partition import Limit, cut, limits_of
from amaranth_vta.sw.compiler.schedule import Fuse, Schedule, Split, Stage
from amaranth_vta.sw.compiler.simplify import identity, simplify, value_interval
from amaranth_vta.sw.compiler.tensor import Tensor
from amaranth_vta.sw.compiler.traverse import accesses, rebuild, substitute


def infer_bounds(schedule: Schedule, args: Sequence[Tensor], name: str) -> Function:
    """The loop nest of ``schedule`` as a function of ``args``, placeholders and outputs."""
    _check_arguments(schedule, args)
    _check_attachments(schedule)
    return _Builder(schedule, args).function(name)


def _check_arguments(schedule: Schedule, args: Sequence[Tensor]) -> None:
    for position, tensor in enumerate(args):
        if not isinstance(tensor, Tensor):
            raise LoweringError(f"argument {position} is {tensor!r}, not a tensor")
        if any(tensor is other for other in args[:position]):
            raise LoweringError(f"{tensor.name} is an argument twice")
    for output in schedule.outputs:
        if output not in args:
            raise LoweringError(f"{output.name} is computed but is not one of the arguments")
    for stage in schedule.stages:
        if stage.tensor in args and (stage.attach is not None or stage.inlined):
            what = "inlined" if stage.inlined else "computed within another stage"
            raise LoweringError(f"{stage.name} is an argument, which cannot be {what}")


def _check_attachments(schedule: Schedule) -> None:
    for stage in schedule.stages:
        around = [stage]
        while (attach := around[-1].attach) is not None:
            consumer, axis = attach
            place = f"{around[-1].name} is computed at {consumer.name}.{axis}"
            if all(leaf is not axis for leaf in consumer.leaves):
                raise LoweringError(f"{place}, which has been split or fused since")
            if consumer.inlined:
                raise LoweringError(f"{place}, but {consumer.name} is inlined and has no loops")
            if consumer in around:
                names = " within ".join(part.name for part in [*around, consumer])
                raise LoweringError(f"{place}: that is a circle, {names}")
            around.append(consumer)


# The first element that is needed of each dimension, and how many.
_Bounds = list[tuple[Affine, int]]


@dataclass
class _Atom:
    """A loop. A fused axis has several; what they stand for stays affine in this way."""

    var: Var
    extent: int
    axis: IterVar


@dataclass
class _Loops:
    """The loops of one stage over one region, and what the axes are in terms of them."""

    stage: Stage
    order: list[_Atom]
    first: set[Var]
    last: set[Var]
    values: dict[Var, Affine]
    limits: list[Limit]
    buffer: Buffer
    # The indices within `buffer` in terms of the loops.
    indices: list[Affine] = field(default_factory=list)


class _Builder:
    def __init__(self, schedule: Schedule, args: Sequence[Tensor]) -> None:
        self.schedule = schedule
        self.ranges: dict[Var, Interval] = {}
        self.buffers: dict[Tensor, Buffer] = {}
        for tensor in args:
            self.buffers[tensor] = Buffer(
                tensor.name, tensor.shape, tensor.dtype, "dram", tensor.op.origin
            )
        self.args = list(args)
        # What each stage computes, those that are inlined put in the place of their reads.
        self.bodies: dict[Stage, Expr] = {}
        for stage in schedule.stages:
            if stage.body is not None:
                self.bodies[stage] = self._inlined(stage.body)

    def function(self, name: str) -> Function:
        body: Stmt = Seq([])
        for stage in reversed(self.schedule.stages):
            if stage.body is None or stage.attach is not None or stage.inlined:
                continue
            if stage.tensor in self.buffers:
                whole = [(Affine({}), extent) for extent in stage.tensor.shape]
                body = seq(self._stage(stage, whole, self.buffers[stage.tensor]), body)
            else:
                body = self._place(stage, body)
        body = self._read_arguments(body)
        return Function(name, [self.buffers[t] for t in self.args], body)

    def _inlined(self, value: Expr) -> Expr:
        value = rebuild(value, self._inlined)
        if not isinstance(value, Access) or not self.schedule[value.source].inlined:
            return value
        stage = self.schedule[value.source]
        indices: dict[Var, Affine] = {}
        for axis, index in zip(stage.op.axis, value.indices, strict=True):
            form = Affine.of(index)
            if form is None:
                raise LoweringError(
                    f"{stage.name} cannot be inlined: {value} reads it at an index that is not "
                    "affine"
                )
            indices[axis] = form
        return substitute(self.bodies[stage], indices)

    def _read_arguments(self, body: Stmt) -> Stmt:
        def change(value: Expr) -> Expr:
            value = rebuild(value, change)
            if isinstance(value, Access) and isinstance(value.source, Tensor):
                if value.source not in self.buffers:
                    raise LoweringError(self._unplaced(value.source))
                return Access(self.buffers[value.source], value.indices)
            return value

        return map_expressions(body, change)

    def _unplaced(self, tensor: Tensor) -> str:
        stage = self.schedule[tensor]
        if stage.attach is None:
            return f"{tensor.name} is read but is not one of the arguments"
        consumer, axis = stage.attach
        return (
            f"{tensor.name} is computed at {consumer.name}.{axis}, but it is read outside of that "
            "loop"
        )

    # Placing a stage around what reads it.

    def _place(self, stage: Stage, body: Stmt) -> Stmt:
        """``body`` with the region of ``stage`` that it reads computed before it."""
        reads = [
            (access, ranges)
            for access, ranges in self._reads(body)
            if access.source is stage.tensor
        ]
        if not reads:
            return body
        bounds = self._bounds(stage.tensor, reads)
        shape = tuple(extent for _, extent in bounds)
        buffer = Buffer(
            stage.name, shape, stage.tensor.dtype, stage.scope, stage.origin, stage.copies
        )
        producer = self._stage(stage, bounds, buffer)

        def change(value: Expr) -> Expr:
            value = rebuild(value, change)
            if isinstance(value, Access) and value.source is stage.tensor:
                indices = []
                for index, (begin, _) in zip(value.indices, bounds, strict=True):
                    indices.append(index - begin if begin.terms or begin.const else index)
                return Access(buffer, indices)
            return value

        return Allocate(buffer, seq(producer, map_expressions(body, change)))

    def _reads(self, body: Stmt) -> list[tuple[Access, dict[Var, Interval]]]:
        found: list[tuple[Access, dict[Var, Interval]]] = []

        def visit(stmt: Stmt, inner: dict[Var, Interval]) -> None:
            match stmt:
                case Seq():
                    for part in stmt.body:
                        visit(part, inner)
                case For():
                    visit(stmt.body, {**inner, stmt.var: (0, stmt.extent - 1)})
                case Allocate() | Region():
                    visit(stmt.body, inner)
                case Assign():
                    found.extend((access, inner) for access in accesses(stmt.value))

        visit(body, {})
        return found

    def _bounds(
        self, tensor: Tensor, reads: Sequence[tuple[Access, Mapping[Var, Interval]]]
    ) -> _Bounds:
        bounds = []
        for dimension, extent in enumerate(tensor.shape):
            whole = (Affine({}), extent)
            begin: Affine | None = None
            low = high = 0
            for access, inner in reads:
                form = Affine.of(access.indices[dimension])
                if form is None:
                    begin = None
                    break
                # The index less the loops around `body`, which are the same for every read.
                outer = Affine({v: f for v, f in form.terms.items() if v not in inner})
                least, most = value_interval(form.plus(outer, -1), inner)
                if begin is None:
                    begin, low, high = outer, least, most
                elif begin.same(outer):
                    low, high = min(low, least), max(high, most)
                else:
                    begin = None
                    break
            if begin is None:
                bounds.append(whole)
                continue
            if not begin.terms:
                # Reads beyond the tensor are conditional; nobody looks at them.
                low, high = max(low, 0), min(high, extent - 1)
            start = begin.plus(Affine({}, low))
            least, most = value_interval(start, self.ranges)
            inside = least >= 0 and most + high - low < extent and low <= high
            bounds.append((start, high - low + 1) if inside else whole)
        return bounds

    # The loops of one stage.

    def _stage(self, stage: Stage, bounds: _Bounds, buffer: Buffer) -> Stmt:
        loops = self._loops(stage, bounds, buffer)
        return self._nest(loops, 0, {}, loops.limits)

    def _loops(self, stage: Stage, bounds: _Bounds, buffer: Buffer) -> _Loops:
        atoms: dict[IterVar, list[_Atom]] = {}
        parts: dict[Var, Affine] = {}
        limits: list[Limit] = []
        extents = [extent for _, extent in bounds]
        for axis, extent in zip(stage.op.axis, extents, strict=True):
            atoms[axis] = [_Atom(Var(axis.name), extent, axis)]
        for axis in stage.reduce_axis:
            assert axis.extent is not None
            atoms[axis] = [_Atom(Var(axis.name), axis.extent, axis)]
        roots = {axis: atoms[axis][0].var for axis in atoms}
        for relation in stage.relations:
            if isinstance(relation, Fuse):
                atoms[relation.fused] = atoms.pop(relation.outer) + atoms.pop(relation.inner)
            else:
                outer, inner = _split(stage, relation, atoms.pop(relation.parent), parts, limits)
                atoms[relation.outer], atoms[relation.inner] = outer, inner
        order: list[_Atom] = []
        first, last = set(), set()
        for leaf in stage.leaves:
            group = [_Atom(atom.var, atom.extent, leaf) for atom in atoms[leaf]]
            if leaf in stage.threads and sum(atom.extent > 1 for atom in group) > 1:
                raise LoweringError(
                    f"{stage.name}.{leaf} is fused from several axes and cannot be a thread"
                )
            first.add(group[0].var)
            last.add(group[-1].var)
            order += group
        relative = {axis: _expand(Affine({var: 1}), parts) for axis, var in roots.items()}
        values: dict[Var, Affine] = {}
        for axis, (begin, _) in zip(stage.op.axis, bounds, strict=True):
            values[axis] = relative[axis].plus(begin)
        for axis in stage.reduce_axis:
            values[axis] = relative[axis].plus(Affine({}, axis.begin))
        limits = [replace(limit, form=_expand(limit.form, parts)) for limit in limits]
        for limit in limits_of(self.bodies[stage]):
            form = limit.form.replace(values)
            # What depends on loops around all of these is left to be asked.
            if form.terms.keys() <= {atom.var for atom in order}:
                limits.append(replace(limit, form=form))
        return _Loops(
            stage,
            order,
            first,
            last,
            values,
            limits,
            buffer,
            [relative[axis] for axis in stage.op.axis],
        )

    def _nest(
        self,
        loops: _Loops,
        depth: int,
        fixed: dict[Var, Affine],
        limits: list[Limit],
        initialize: bool = False,
    ) -> Stmt:
        """The loops from ``depth`` inward; those further out are ``fixed``."""
        if depth == len(loops.order):
            return self._assign(loops, fixed, initialize)
        atom, stage = loops.order[depth], loops.stage
        if atom.axis.kind == "reduce" and initialize:
            return self._nest(loops, depth + 1, fixed, limits, initialize)
        if atom.axis.kind == "reduce" and not any(
            a.axis.kind == "reduce" for a in loops.order[:depth]
        ):
            # Whatever is summed, every element begins.
            own = {a.var for a in loops.order if a.axis.kind == "reduce"}
            kept = [limit for limit in limits if not own & limit.form.terms.keys()]
            start = self._nest(loops, depth, fixed, kept, initialize=True)
            kind = _kind(stage)
            if kind and not self._within_region(loops, depth):
                start = Region(kind, start)
            return seq(start, self._axis(loops, depth, fixed, limits, initialize))
        return self._axis(loops, depth, fixed, limits, initialize)

    def _within_region(self, loops: _Loops, depth: int) -> bool:
        marks = {**loops.stage.pragmas, **loops.stage.intrinsics}
        return any(atom.axis in marks for atom in loops.order[:depth])

    def _axis(
        self,
        loops: _Loops,
        depth: int,
        fixed: dict[Var, Affine],
        limits: list[Limit],
        initialize: bool,
    ) -> Stmt:
        atom, stage = loops.order[depth], loops.stage
        nests = []
        within = {other.var: other.extent for other in loops.order[depth + 1 :]}
        for part in cut(atom.var, atom.extent, within, fixed, limits, self.ranges):
            begin, end, rest = part.begin, part.end, part.limits
            if end - begin == 1:
                inner = self._inside(
                    loops, depth, {**fixed, atom.var: Affine({}, begin)}, rest, initialize
                )
                nests.append(inner)
                continue
            var = Var(atom.var.name)
            self.ranges[var] = (0, end - begin - 1)
            inner = self._inside(
                loops, depth, {**fixed, atom.var: Affine({var: 1}, begin)}, rest, initialize
            )
            kind = "serial"
            if atom.axis in stage.threads:
                kind = "cthread"
            elif atom.axis in stage.unrolled:
                kind = "unroll"
            label = Label(stage.name, atom.axis.name, atom.axis.origin)
            nests.append(For(var, end - begin, inner, label, kind))
        result = seq(*nests)
        mark = _mark(stage, atom.axis)
        if mark and not initialize and atom.var in loops.first:
            return Region(mark, result)
        return result

    def _inside(
        self,
        loops: _Loops,
        depth: int,
        fixed: dict[Var, Affine],
        limits: list[Limit],
        initialize: bool,
    ) -> Stmt:
        atom = loops.order[depth]
        inner = self._nest(loops, depth + 1, fixed, limits, initialize)
        if atom.var not in loops.last or initialize:
            return inner
        for stage in reversed(self.schedule.stages):
            if stage.attach is not None and stage.attach[1] is atom.axis and stage.body is not None:
                if self._within_region(loops, depth + 1):
                    raise LoweringError(
                        f"{stage.name} is computed at {loops.stage.name}.{atom.axis}, which is "
                        f"within what {loops.stage.name} does in one instruction"
                    )
                inner = self._place(stage, inner)
        return inner

    def _assign(self, loops: _Loops, fixed: dict[Var, Affine], initialize: bool) -> Stmt:
        stage = loops.stage
        values = {axis: value.replace(fixed) for axis, value in loops.values.items()}
        indices = tuple(index.replace(fixed) for index in loops.indices)
        label = Label(stage.name, "", stage.origin)
        body = self.bodies[stage]
        if not isinstance(body, Reduce):
            whole = substitute(body, values)
            value = simplify(whole, self.ranges)
            if isinstance(value, Const) and _kind(stage) == "dma_copy":
                # A copy of padding alone; what it would copy tells which memory it is for.
                value = whole
            return Assign(loops.buffer, indices, value, label)
        if initialize:
            return Assign(loops.buffer, indices, Const(identity(body), body.dtype), label)
        value = simplify(substitute(body.value, values), self.ranges)
        update = body.combine(Access(loops.buffer, indices), value)
        return Assign(loops.buffer, indices, update, label)


def _kind(stage: Stage) -> str:
    for axis in stage.leaves:
        if _mark(stage, axis):
            return _mark(stage, axis)
    return ""


def _mark(stage: Stage, axis: IterVar) -> str:
    if axis in stage.intrinsics:
        return str(stage.intrinsics[axis])
    return stage.pragmas.get(axis, "")


def _expand(form: Affine, parts: Mapping[Var, Affine]) -> Affine:
    while any(var in parts for var in form.terms):
        form = form.replace(parts)
    return form


def _split(
    stage: Stage,
    relation: Split,
    atoms: list[_Atom],
    parts: dict[Var, Affine],
    limits: list[Limit],
) -> tuple[list[_Atom], list[_Atom]]:
    """The loops of the outer and of the inner axis of a split."""
    total = prod(atom.extent for atom in atoms)
    factor = relation.factor
    if factor is None:
        assert relation.nparts is not None
        factor = -(-total // relation.nparts)
    factor = min(factor, total)
    within = 1
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
        outer = _Atom(Var(relation.outer.name), -(-atom.extent // size), relation.outer)
        inner = _Atom(Var(relation.inner.name), size, relation.inner)
        parts[atom.var] = Affine({outer.var: size, inner.var: 1})
        if atom.extent % size:
            limits.append(Limit(Affine({atom.var: 1}), atom.extent - 1))
        return [*atoms[:position], outer], [inner, *atoms[position + 1 :]]
    extents = " x ".join(str(atom.extent) for atom in atoms)
    raise LoweringError(
        f"{stage.name}.{relation.parent} is fused from loops of {extents} and cannot be split by "
        f"{factor}: the parts would not be whole loops"
    )
