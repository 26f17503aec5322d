"""Lower a schedule to a loop nest in which every loop and every buffer has a constant extent.

Stages are placed from the outputs backwards: the region of a stage is the union of what its
consumers' loops, already placed, read. Where a split does not divide evenly, the loop is
partitioned into ranges of equal iterations, so that tails become separate nests without guards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from amaranth_vta.sw.compiler.nest.ir import (
    Allocate,
    Assign,
    For,
    Label,
    LoopNest,
    LoweringError,
    NestBuffer,
    Region,
    Seq,
    Stmt,
    children,
    map_expressions,
    map_reads,
    reads,
    seq,
    sources,
)
from amaranth_vta.sw.compiler.te.dtypes import Interval
from amaranth_vta.sw.compiler.te.expr import Access, Affine, Const, Expr, IterVar, Reduce, Var
from amaranth_vta.sw.compiler.te.schedule import Schedule, Stage
from amaranth_vta.sw.compiler.te.simplify import identity, simplify, value_interval
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.te.traverse import rebuild, substitute

from .support.carried import CarriedBuffer
from .support.inlined import inlined_bodies
from .support.kept import KeptBuffer
from .support.partition import Limit, partition_loop, peel_first, peel_last
from .support.rewritten import RewrittenBuffer
from .support.rolling import RollingBuffer, Written
from .support.stage_loops import Bounds, StageLoops, limits_of_attached, stage_loops

# One iteration.
_ONCE = Affine({}), 1


def infer_bounds(schedule: Schedule, args: Sequence[Tensor], name: str) -> LoopNest:
    """Lower ``schedule`` to a loop nest with the arguments ``args``, placeholders and outputs.
    Raises `LoweringError` if that is impossible.
    """
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
        if stage.stored_with is not None and (stage.is_scheduled() or stage.parts):
            loops = f"the loops of {stage.stored_with.name}"
            raise LoweringError(f"{stage.name} is stored in {loops}; a step is for its own loops")


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
                raise LoweringError(f"{place}: that is a cycle, {names}")
            around.append(consumer)
        _check_stored(stage)


def _check_stored(stage: Stage) -> None:
    if stage.stored_in is None or stage.attach is None:
        return
    inner = stage.axis_within(stage.stored_in)
    if inner is None or stage.stored_in.axis_around(inner) is not stage.stored_at:
        consumer, axis = stage.attach
        raise LoweringError(
            f"{stage.name} is computed at {consumer.name}.{axis} and stored at {stage.stored_at}, "
            "which is not the next loop outside"
        )


class _Builder:
    def __init__(self, schedule: Schedule, args: Sequence[Tensor]) -> None:
        self.schedule = schedule
        self.ranges: dict[Var, Interval] = {}
        self.buffers: dict[Tensor, NestBuffer] = {}
        for tensor in args:
            self.buffers[tensor] = NestBuffer(
                tensor.name, tensor.shape, tensor.dtype, "dram", tensor.op.origin
            )
        self.args = list(args)
        # Rolling buffers of the stages that are kept across an enclosing loop (store_at).
        self.rolling: dict[Stage, RollingBuffer] = {}
        # The loops around the stages that are placed: per axis, the iterations of the part, and the
        # number of iterations of the whole loop.
        self.iterations: dict[IterVar, tuple[Affine, int]] = {}
        self.bodies = inlined_bodies(schedule)

    def function(self, name: str) -> LoopNest:
        body: Stmt = Seq([])
        for stage in reversed(self.schedule.stages):
            if stage.body is None or stage.attach is not None or stage.inlined:
                continue
            if stage.stored_with is not None:
                continue
            if stage.tensor in self.buffers:
                body = seq(self._argument(stage), body)
            else:
                body = self._place(stage, body)
        body = self._read_arguments(body)
        return LoopNest(name, [self.buffers[t] for t in self.args], body)

    def _argument(self, stage: Stage) -> Stmt:
        """The nest of a stage that computes an argument."""
        bounds = []
        for axis, whole in zip(stage.op.axis, stage.tensor.shape, strict=True):
            begin, extent = stage.parts.get(axis, (0, whole))
            bounds.append((Affine({}, begin), extent))
        return self._stage(stage, bounds, self.buffers[stage.tensor])

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

    # Placing a stage before its consumers.

    def _place(self, stage: Stage, body: Stmt) -> Stmt:
        """``body``, preceded by a nest that computes the region of ``stage`` that it reads; if that
        is a rolling buffer, for the current iterations.
        """
        found = self._reads(body, stage.tensor)
        if not found:
            return body
        bounds = [
            (Affine({}), extent) if axis in stage.whole else bound
            for axis, extent, bound in zip(
                stage.op.axis, stage.tensor.shape, self._bounds(stage.tensor, found), strict=True
            )
        ]
        rolling = self.rolling.get(stage)
        if rolling is not None:
            return self._place_rolling(rolling, bounds, body)
        shape = tuple(extent for _, extent in bounds)
        buffer = NestBuffer(
            stage.name, shape, stage.tensor.dtype, stage.scope, stage.origin, stage.copies
        )
        buffer.bank, buffer.ahead = stage.bank, stage.ahead
        buffer.stagger, buffer.parts = stage.staggered
        producer = self._stage(stage, bounds, buffer)

        def change(access: Access) -> Access:
            indices = []
            for index, (begin, _) in zip(access.indices, bounds, strict=True):
                indices.append(index - begin if begin.terms or begin.const else index)
            return Access(buffer, indices)

        return Allocate(buffer, seq(producer, map_reads(body, stage.tensor, change)))

    def _place_rolling(self, rolling: RollingBuffer, bounds: Bounds, body: Stmt) -> Stmt:
        stage = rolling.stage
        assert stage.attach is not None
        assert stage.stored_in is not None
        around, axis = stage.axis_within(stage.stored_in), stage.attach[1]
        assert around is not None
        inner = _ONCE if axis is around else self.iterations[axis]
        written = rolling.place(bounds, self.iterations[around][0], inner, self.ranges)

        body = map_reads(body, stage.tensor, lambda access: rolling.read(access, self.ranges))
        return seq(*(self._stage(stage, i.bounds, rolling.buffer, i) for i in written), body)

    def _reads(self, body: Stmt, tensor: Tensor) -> list[tuple[Access, dict[Var, Interval]]]:
        """The reads of ``tensor`` in ``body``, with the ranges of the loops around each."""
        found: list[tuple[Access, dict[Var, Interval]]] = []
        within: list[tuple[Stmt, dict[Var, Interval]]] = [(body, {})]
        while within:
            stmt, inner = within.pop()
            if tensor not in sources(stmt):
                continue
            if isinstance(stmt, For):
                inner = {**inner, stmt.var: (0, stmt.extent - 1)}
            if isinstance(stmt, Assign):
                found.extend((access, inner) for access in reads(stmt) if access.source is tensor)
            within += ((part, inner) for part in reversed(children(stmt)))
        return found

    def _bounds(
        self, tensor: Tensor, found: Sequence[tuple[Access, Mapping[Var, Interval]]]
    ) -> Bounds:
        bounds = []
        for dimension, extent in enumerate(tensor.shape):
            whole = (Affine({}), extent)
            begin: Affine | None = None
            low = high = 0
            for access, inner in found:
                form = Affine.of(access.indices[dimension])
                if form is None:
                    begin = None
                    break
                # The index without the loops around `body`, which contribute equally to every read.
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
                # Out-of-bounds reads are guarded by a condition that is false there.
                low, high = max(low, 0), min(high, extent - 1)
            start = begin.plus(Affine({}, low))
            least, most = value_interval(start, self.ranges)
            inside = least >= 0 and most + high - low < extent and low <= high
            bounds.append((start, high - low + 1) if inside else whole)
        return bounds

    # The loops of one stage.

    def _stage(
        self,
        stage: Stage,
        bounds: Bounds,
        buffer: NestBuffer,
        written: Written | None = None,
    ) -> Stmt:
        loops = stage_loops(stage, self.bodies[stage], bounds, buffer)
        if stage.tensor in self.buffers:
            # An argument is in memory as a whole, even if only a part of it is computed.
            loops.indices = [loops.values[axis] for axis in stage.op.axis]
        if written is not None:
            loops.indices = written.indices(loops.indices)
        limits = [*loops.limits, *limits_of_attached(loops, self.schedule, self.bodies)]
        return self._nest(loops, 0, {}, limits)

    def _nest(
        self,
        loops: StageLoops,
        depth: int,
        fixed: dict[Var, Affine],
        limits: list[Limit],
        initialize: bool = False,
    ) -> Stmt:
        """The loops from ``depth`` inward; ``fixed`` replaces the variables of outer loops."""
        if depth == len(loops.order):
            return self._assign(loops, fixed, initialize)
        atom, stage = loops.order[depth], loops.stage
        if atom.axis.kind == "reduce" and initialize:
            return self._nest(loops, depth + 1, fixed, limits, initialize)
        if atom.axis.kind == "reduce" and not any(
            a.axis.kind == "reduce" for a in loops.order[:depth]
        ):
            # Every element is initialized, even where nothing is reduced into it.
            own = {a.var for a in loops.order if a.axis.kind == "reduce"}
            axes = {a.axis for a in loops.order if a.axis.kind == "reduce"}
            kept = [
                limit
                for limit in limits
                if not own & limit.form.terms.keys() and limit.until not in axes
            ]
            start = self._nest(loops, depth, fixed, kept, initialize=True)
            kind = _kind(stage)
            if kind and not self._within_region(loops, depth):
                start = Region(kind, start)
            return seq(start, self._axis(loops, depth, fixed, limits, initialize))
        return self._axis(loops, depth, fixed, limits, initialize)

    def _within_region(self, loops: StageLoops, depth: int) -> bool:
        marks = {**loops.stage.pragmas, **loops.stage.intrinsics}
        return any(atom.axis in marks for atom in loops.order[:depth])

    def _axis(
        self,
        loops: StageLoops,
        depth: int,
        fixed: dict[Var, Affine],
        limits: list[Limit],
        initialize: bool,
    ) -> Stmt:
        atom, stage = loops.order[depth], loops.stage
        nests = []
        within = {other.var: other.extent for other in loops.order[depth + 1 :]}
        parts = partition_loop(atom.var, atom.extent, within, fixed, limits, self.ranges)
        reused = [
            item
            for item in self.rolling
            if (item.kept or item.carried is not None)
            and item.stored_in is stage
            and item.axis_within(stage) is atom.axis
        ]
        if reused:
            parts = peel_first(parts)
        if any(item.rewritten is not None for item in reused):
            parts = peel_last(parts)
        for part in parts:
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
        loops: StageLoops,
        depth: int,
        fixed: dict[Var, Affine],
        limits: list[Limit],
        initialize: bool,
    ) -> Stmt:
        atom = loops.order[depth]
        if atom.var not in loops.last or initialize:
            return self._nest(loops, depth + 1, fixed, limits, initialize)
        limits = [limit for limit in limits if limit.until is not atom.axis]
        stored = self._stored(loops, depth)
        self.rolling.update(stored)
        iterations = self._iteration(loops, depth, fixed)
        self.iterations[atom.axis] = iterations
        inner = self._nest(loops, depth + 1, fixed, limits, initialize)
        for stage in reversed(self.schedule.stages):
            if stage in stored:
                inner = self.rolling.pop(stage).around(inner)
            if stage.is_computed_at(atom.axis) and stage.body is not None:
                if self._within_region(loops, depth + 1):
                    raise LoweringError(
                        f"{stage.name} is computed at {loops.stage.name}.{atom.axis}, which is "
                        f"within one instruction of {loops.stage.name}"
                    )
                self.iterations[atom.axis] = iterations
                inner = self._place(stage, inner)
        return inner

    def _iteration(
        self, loops: StageLoops, depth: int, fixed: Mapping[Var, Affine]
    ) -> tuple[Affine, int]:
        """The iteration of the axis whose last loop is at ``depth``, and their number."""
        number, count = Affine({}), 1
        for atom in reversed(loops.order[: depth + 1]):
            if atom.axis is not loops.order[depth].axis:
                break
            number = number.plus(fixed[atom.var], count)
            count *= atom.extent
        return number, count

    def _stored(self, loops: StageLoops, depth: int) -> dict[Stage, RollingBuffer]:
        """New buffers of the stages that are stored at the loop at ``depth``."""
        axis = loops.order[depth].axis
        inner = loops.order[depth + 1 : depth + 2]
        return {
            stage: _rolling_buffer(stage, inner[0].extent)
            for stage in self.schedule.stages
            if stage.stored_at is axis
        }

    def _assign(self, loops: StageLoops, fixed: dict[Var, Affine], initialize: bool) -> Stmt:
        stage = loops.stage
        values = {axis: value.replace(fixed) for axis, value in loops.values.items()}
        indices = tuple(index.replace(fixed) for index in loops.indices)
        label = Label(stage.name, "", stage.origin)
        body = self.bodies[stage]
        if not isinstance(body, Reduce):
            whole = substitute(body, values)
            value = simplify(whole, self.ranges)
            if isinstance(value, Const) and _kind(stage) == "dma_copy":
                # A copy that is only padding keeps its source, which determines the memory.
                value = whole
            own = Assign(loops.buffer, indices, value, label)
            return seq(own, *self._stored_with(stage, values, indices))
        if initialize:
            return Assign(loops.buffer, indices, Const(identity(body), body.dtype), label)
        value = simplify(substitute(body.value, values), self.ranges)
        update = body.combine(Access(loops.buffer, indices), value)
        return Assign(loops.buffer, indices, update, label)

    def _stored_with(
        self, stage: Stage, values: Mapping[Var, Affine], indices: tuple[Expr, ...]
    ) -> Iterator[Assign]:
        """The assignments of the outputs that are stored in the loops of ``stage``."""
        for other in self.schedule.stages:
            if other.stored_with is stage:
                axes = zip(other.op.axis, stage.op.axis, strict=True)
                own: dict[Var, Affine] = {axis: values[same] for axis, same in axes}
                value = simplify(substitute(self.bodies[other], own), self.ranges)
                label = Label(other.name, "", other.origin)
                yield Assign(self.buffers[other.tensor], indices, value, label)


def _rolling_buffer(stage: Stage, iterations: int) -> RollingBuffer:
    if stage.kept:
        return KeptBuffer(stage, iterations)
    if stage.carried is None:
        return RollingBuffer(stage, iterations)
    return (CarriedBuffer if stage.rewritten is None else RewrittenBuffer)(stage, iterations)


def _kind(stage: Stage) -> str:
    for axis in stage.leaves:
        if _mark(stage, axis):
            return _mark(stage, axis)
    return ""


def _mark(stage: Stage, axis: IterVar) -> str:
    if axis in stage.intrinsics:
        return str(stage.intrinsics[axis])
    return stage.pragmas.get(axis, "")
