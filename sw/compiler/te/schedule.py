"""Schedules: how the tensors of an expression are computed, without changing their values.

A schedule has one stage per tensor. Its steps (`Stage.split`, `Stage.reorder`, …) rearrange the
stage's loops, place it within another stage's loops, choose the memory that holds it and mark the
loops that become instructions. An illegal step raises `ScheduleError`, which names the axis and the
reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .dtypes import ExpressionError, whole_number
from .expr import Access, Affine, Expr, IterVar, Reduce, Var
from .origin import Origin
from .tensor import Operation, Tensor
from .traverse import accesses, rebuild, substitute

Array = npt.NDArray[Any]
SCOPES = ("dram", "inp", "wgt", "acc")
PRAGMAS = ("dma_copy", "alu")

_NOT_BOTH = "a staggered buffer is kept for one iteration"


class ScheduleError(ValueError):
    """A schedule step is illegal; the message names the axis and the reason."""


@dataclass(frozen=True)
class Split:
    """``parent`` = ``outer`` * factor + ``inner``. If ``factor`` is None, the number of parts is
    given instead. A factor is a number, or an array in a schedule that stands for several. If
    ``first`` is given, the first part has that many iterations; it is at least the factor.
    """

    parent: IterVar
    outer: IterVar
    inner: IterVar
    factor: Any
    nparts: int | None
    first: int | None = None


@dataclass(frozen=True)
class Fuse:
    """``fused`` iterates over ``outer`` and, within it, ``inner``."""

    outer: IterVar
    inner: IterVar
    fused: IterVar


@dataclass(frozen=True)
class TensorIntrinsic:
    """A tensor operation of the machine: acc[b, o] += sum over i of inp[b, i] * wgt[o, i]."""

    name: str
    batch: int
    block_out: int
    block_in: int

    def __str__(self) -> str:
        return self.name


class Stage:
    """How one tensor is computed."""

    def __init__(self, schedule: Schedule, tensor: Tensor, body: Expr | None) -> None:
        self.schedule = schedule
        self.tensor = tensor
        self.op = tensor.op
        self.body = body
        self.reduce_axis = list(body.axes) if isinstance(body, Reduce) else []
        self.leaves: list[IterVar] = [*self.op.axis, *self.reduce_axis]
        self.relations: list[Split | Fuse] = []
        self.scope = "dram"
        self.attach: tuple[Stage, IterVar] | None = None
        # The output whose loops also store this output.
        self.stored_with: Stage | None = None
        # The consumer's axis within which the buffer is kept, if further out than the attach axis.
        self.stored_at: IterVar | None = None
        # The stage of that axis: the consumer, or a stage that the consumer is computed within.
        self.stored_in: Stage | None = None
        # Whether the other iterations of the loop within that axis reuse what the first computes.
        self.kept = False
        self.carried: IterVar | None = None
        # Number of elements along `carried` that are written twice, for this iteration and the
        # next one; None if the next iteration reads them where this one has written them.
        self.rewritten: int | None = None
        self.pragmas: dict[IterVar, str] = {}
        self.intrinsics: dict[IterVar, TensorIntrinsic] = {}
        self.threads: dict[IterVar, IterVar] = {}
        self.unrolled: set[IterVar] = set()
        self.whole: set[IterVar] = set()
        # First element and number of elements of the axes of an output that is computed in part.
        self.parts: dict[IterVar, tuple[int, int]] = {}
        self.copies = 1
        self.bank: int | None = None
        self.ahead = 0
        # Distance and number of the parts in which operations on the finished buffer are executed.
        self.staggered = 1, 1
        self.inlined = False
        self.origin: Origin = self.op.origin

    @property
    def name(self) -> str:
        return self.tensor.name

    def split(
        self,
        parent: IterVar,
        factor: int | Array | None = None,
        nparts: int | None = None,
        first: int | None = None,
    ) -> tuple[IterVar, IterVar]:
        """Split ``parent`` into an outer and an inner axis: parts of ``factor`` iterations, or
        ``nparts`` parts. If the extent is not divisible, the last part is smaller. With ``first``,
        the first part is larger than the factor. With an array of factors the schedule stands for
        several, to be compared and not to be lowered.
        """
        position, step = self._position(parent, "split"), f"split of {self.name}.{parent}"
        if (factor is None) == (nparts is None):
            raise ScheduleError(f"{step}: give factor or nparts")
        if nparts is not None:
            nparts = positive(step, nparts)
        elif not isinstance(factor, np.ndarray):
            factor = positive(step, factor)
        if first is not None and (factor is None or not np.all(first >= np.asarray(factor))):
            raise ScheduleError(f"{step}: a first part of {first} is not as large as the factor")
        self._check_unmarked(parent, "split")
        outer = IterVar(f"{parent.name}_outer", None, parent.kind)
        inner = IterVar(f"{parent.name}_inner", None, parent.kind)
        self.relations.append(Split(parent, outer, inner, factor, nparts, first))
        self.leaves[position : position + 1] = [outer, inner]
        return outer, inner

    def fuse(self, *axes: IterVar) -> IterVar:
        """Fuses adjacent axes, outermost first, into one."""
        if not axes:
            raise ScheduleError(f"fuse of {self.name}: no axis is given")
        fused = axes[0]
        for axis in axes[1:]:
            fused = self._fuse(fused, axis)
        return fused

    def _fuse(self, outer: IterVar, inner: IterVar) -> IterVar:
        position = self._position(outer, "fuse")
        if self._position(inner, "fuse") != position + 1:
            raise ScheduleError(
                f"fuse of {self.name}.{outer} and {inner}: {inner} does not follow {outer} (the "
                f"order is {self._order()})"
            )
        if outer.kind != inner.kind:
            raise ScheduleError(
                f"fuse of {self.name}.{outer} and {inner}: one is {outer.kind}, the other "
                f"{inner.kind}"
            )
        for axis in (outer, inner):
            self._check_unmarked(axis, "fuse")
        fused = IterVar(f"{outer.name}_{inner.name}_fused", None, outer.kind)
        self.relations.append(Fuse(outer, inner, fused))
        self.leaves[position : position + 2] = [fused]
        return fused

    def reorder(self, *axes: IterVar) -> None:
        """Put ``axes`` in this order, in the positions that they occupied."""
        positions = sorted(self._position(axis, "reorder") for axis in axes)
        if len(set(positions)) != len(axes):
            raise ScheduleError(f"reorder of {self.name}: an axis is given twice")
        for position, axis in zip(positions, axes, strict=True):
            self.leaves[position] = axis

    def compute_at(self, consumer: Stage, axis: IterVar) -> None:
        """Compute the stage within the loop ``axis`` of ``consumer``: in each iteration, the region
        that the consumer reads.
        """
        step = f"compute_at of {self.name}"
        if self.body is None:
            raise ScheduleError(f"{step}: a placeholder is not computed")
        if not isinstance(consumer, Stage):
            raise ScheduleError(f"{step}: {consumer!r} is not a stage, such as s[tensor]")
        if consumer.schedule is not self.schedule:
            raise ScheduleError(f"{step}: {consumer.name} is a stage of another schedule")
        consumer._position(axis, step)
        if consumer is self:
            raise ScheduleError(f"{step}: a stage cannot be within itself")
        if self.tensor in self.schedule.outputs:
            raise ScheduleError(f"{step}: an output is computed at the top")
        self.attach = (consumer, axis)
        self.stored_at = self.stored_in = self.carried = self.rewritten = None

    def store_at(self, axis: IterVar, around: Stage | None = None, keep: bool = False) -> None:
        """Keep the buffer for all iterations of ``axis``, the consumer's axis directly outside of
        the stage's `compute_at` axis. Iterations of the `compute_at` axis then rotate through the
        copies of the buffer, even where tails and borders are separate loop nests, and continue to
        rotate in the next iteration of ``axis``.

        With ``around``, ``axis`` is an axis of that stage, and the stage is computed within the
        next loop: its consumer, perhaps indirectly, is computed at the axis directly inside.

        With ``keep``, only the first iteration of the loop directly inside fills the buffer. The
        others, which must read the same, use it. A loop within that iteration may fill it in parts.
        """
        if self.attach is None:
            raise ScheduleError(f"store_at of {self.name}: compute_at comes first")
        if self.carried is not None:
            raise ScheduleError(f"store_at of {self.name}: carry has been given; it comes after")
        if self.staggered != (1, 1):
            raise ScheduleError(f"store_at of {self.name}: stagger has been given; {_NOT_BOTH}")
        owner = self.attach[0] if around is None else around
        owner._position(axis, f"store_at of {self.name}")
        inner = self.axis_within(owner)
        if inner is None:
            raise ScheduleError(f"store_at of {self.name}: it is not computed within {owner.name}")
        consumer = self.attach[0]
        if owner not in (consumer, consumer.attach and consumer.attach[0]):
            raise ScheduleError(
                f"store_at of {self.name}: it is computed within {owner.name} only indirectly, "
                f"through several stages"
            )
        if owner.axis_around(inner) is not axis:
            raise ScheduleError(
                f"store_at of {self.name}: {owner.name}.{inner}, which it is computed at, is "
                f"not the axis right within {axis} (the order is {owner._order()})"
            )
        self.stored_at, self.stored_in, self.kept = axis, owner, keep

    def carry(self, axis: IterVar, rewritten: int | None = None) -> None:
        """Reuse the previous iteration's results where the regions of both overlap along ``axis``
        of the tensor: only the rest is computed, and the overlap is read from the previous copy.

        If the stage is a copy, it can instead write the last ``rewritten`` elements, which must be
        the overlap, a second time: where the next iteration reads them, before its own elements.
        A stage that is stored around another stage must do so; each iteration of the loop at which
        it is computed has its own overlap.
        """
        step = f"carry of {self.name}.{axis}"
        if self.stored_at is None or self.kept:
            raise ScheduleError(f"{step}: store_at comes first, and keeps nothing")
        if rewritten is None and self.attach is not None and self.stored_in is not self.attach[0]:
            raise ScheduleError(f"{step}: give the number of elements that are written twice")
        self.carried = self._own(axis, "carry")
        self.rewritten = None if rewritten is None else positive(step, rewritten)

    def compute_whole(self, axis: IterVar) -> None:
        """Compute the full extent of an ``axis`` of the tensor, even if only part of it is read."""
        self.whole.add(self._own(axis, "compute_whole"))

    def compute_part(self, axis: IterVar, begin: int, extent: int) -> None:
        """Compute only ``extent`` elements of an output from ``begin`` on along its ``axis``, and
        leave all others unchanged in memory.
        """
        step = f"compute_part of {self.name}.{axis}"
        if self.tensor not in self.schedule.outputs:
            raise ScheduleError(f"{step}: {self.name} is not an output")
        whole = self._own(axis, "compute_part").extent
        assert whole is not None
        if begin < 0 or positive(step, extent) + begin > whole:
            raise ScheduleError(
                f"{step}: {begin} to {begin + extent - 1} is not in 0 to {whole - 1}"
            )
        self.parts[axis] = begin, extent

    def store_with(self, other: Stage) -> None:
        """Store an output in the loops of the ``other`` output, which has the same shape: after a
        tile of the other output, these loops store the same tile of this one.
        """
        step = f"store_with of {self.name}"
        if not isinstance(other, Stage) or other.schedule is not self.schedule:
            raise ScheduleError(f"{step}: {other!r} is not a stage of this schedule")
        for stage in (self, other):
            if stage.tensor not in self.schedule.outputs or stage.reduce_axis:
                kind = "a reduction" if stage.reduce_axis else "not an output"
                raise ScheduleError(f"{step}: {stage.name} is {kind}")
        if other is self or other.stored_with is not None:
            raise ScheduleError(f"{step}: {other.name} has no loops of its own")
        if self.is_scheduled():
            raise ScheduleError(f"{step}: its own loops are scheduled already")
        if self.tensor.shape != other.tensor.shape:
            shapes = f"{list(self.tensor.shape)} and {list(other.tensor.shape)}"
            raise ScheduleError(f"{step}: the shapes {shapes} differ")
        # What both outputs need is computed before the loops.
        stages = self.schedule.stages
        if stages.index(other) < stages.index(self):
            other.after(stages[stages.index(self) - 1])
        self.stored_with = other

    def after(self, other: Stage) -> None:
        """Compute the stage after ``other``, if both are computed at the same axis. By default a
        stage is computed right before its first reader.
        """
        stages = self.schedule.stages
        if other.schedule is not self.schedule:
            raise ScheduleError(f"after: {other.name} is a stage of another schedule")
        begin, end = stages.index(self), stages.index(other)
        for stage in stages[begin + 1 : end + 1]:
            if stage.body is not None and any(
                read.source is self.tensor for read in accesses(stage.body)
            ):
                raise ScheduleError(f"{self.name} after {other.name}: {stage.name} reads it")
        if begin < end:
            stages.insert(end, stages.pop(begin))

    def compute_root(self) -> None:
        """Compute the whole tensor before its consumers: the default."""
        self.attach = self.stored_at = self.stored_in = self.carried = self.rewritten = None

    def compute_inline(self) -> None:
        """Computes each element where it is read, without storing it."""
        if self.body is None or self.reduce_axis or self.tensor in self.schedule.outputs:
            kind = "a placeholder" if self.body is None else "an output"
            kind = "a reduction" if self.reduce_axis else kind
            raise ScheduleError(f"compute_inline of {self.name}: {kind} must be stored")
        self.inlined = True

    def set_scope(self, scope: str) -> None:
        """Chooses the memory that holds the tensor: inp, wgt or acc."""
        step = f"set_scope of {self.name}"
        if scope not in SCOPES:
            raise ScheduleError(f"{step}: {scope!r} is not one of {', '.join(SCOPES)}")
        if self.op.body is None:
            raise ScheduleError(f"{step}: a placeholder stays in dram; use cache_read")
        if self.tensor in self.schedule.outputs and scope != "dram":
            raise ScheduleError(f"{step}: an output stays in dram; use cache_write")
        self.scope = scope

    def double_buffer(self, copies: int = 2, bank: int | None = None) -> None:
        """Keep ``copies`` of the buffer and rotate through them, so that one can be filled while
        another is read. Copies of accumulators alternate between both banks or, if ``bank`` (0 or
        1) is given, are all in that bank.
        """
        self.copies = positive(f"double_buffer of {self.name}", copies)
        if bank not in (None, 0, 1):
            raise ScheduleError(f"double_buffer of {self.name}: there is no bank {bank}")
        self.bank = bank

    def compute_ahead(self, iterations: int = 1) -> None:
        """Software-pipeline the loop that the stage is computed at: compute the stage, and the
        stages that only it needs, ``iterations`` iterations ahead of its consumers. Each iteration
        in flight needs a copy of the buffer (`double_buffer`).
        """
        if self.attach is None:
            raise ScheduleError(f"compute_ahead of {self.name}: compute_at comes first")
        self.ahead = positive(f"compute_ahead of {self.name}", iterations)

    def stagger(self, iterations: int, parts: int) -> None:
        """Execute the operations on the finished buffer, up to the store, in up to ``parts`` parts
        along their outermost loops: the first at once, each other one ``iterations`` iterations of
        the next software-pipelined loop later. The loop then fills another copy (`double_buffer`).
        """
        step = f"stagger of {self.name}"
        if self.attach is None:
            raise ScheduleError(f"{step}: compute_at comes first")
        if self.stored_at is not None:
            raise ScheduleError(f"{step}: store_at has been given; {_NOT_BOTH}")
        self.staggered = positive(step, iterations), positive(step, parts)

    def pragma(self, axis: IterVar, name: str) -> None:
        """Turn the loops from ``axis`` inward into DMA copies or ALU operations, depending on
        ``name``.
        """
        if name not in PRAGMAS:
            also = "; env.gemm is for tensorize" if isinstance(name, TensorIntrinsic) else ""
            raise ScheduleError(
                f"pragma of {self.name}: {name!r} is not one of {', '.join(PRAGMAS)}{also}"
            )
        self._position(axis, "pragma")
        self._check_kind(axis, f"pragma {name}")
        self.pragmas[axis] = name

    def tensorize(self, axis: IterVar, intrinsic: TensorIntrinsic) -> None:
        """Turn the loops from ``axis`` inward into one ``intrinsic``."""
        self._position(axis, "tensorize")
        if not isinstance(intrinsic, TensorIntrinsic):
            raise ScheduleError(
                f"tensorize of {self.name}.{axis}: {intrinsic!r} is not an intrinsic; use env.gemm"
            )
        self._check_kind(axis, f"tensorize by {intrinsic}")
        self.intrinsics[axis] = intrinsic

    def bind(self, axis: IterVar, thread: IterVar) -> None:
        """Runs the iterations of ``axis`` as virtual threads."""
        self._position(axis, "bind")
        if axis.kind != "spatial":
            raise ScheduleError(
                f"bind of {self.name}.{axis}: a {axis.kind} axis cannot be a thread"
            )
        if not isinstance(thread, IterVar) or thread.kind != "thread":
            raise ScheduleError(f"bind of {self.name}.{axis}: {thread} is not a te.thread_axis")
        self.threads[axis] = thread

    def unroll(self, axis: IterVar) -> None:
        """Unrolls the loop over ``axis``."""
        self._position(axis, "unroll")
        self.unrolled.add(axis)

    def _check_unmarked(self, axis: IterVar, step: str) -> None:
        """Raises `ScheduleError` if ``axis`` has a mark that its parts would not inherit."""
        marks = {**self.pragmas, **self.intrinsics, **dict.fromkeys(self.unrolled, "unroll")}
        mark = marks.get(axis) or ("a thread" if axis in self.threads else None)
        if mark is not None:
            raise ScheduleError(
                f"{step} of {self.name}.{axis}: it has been marked as {mark} already; {step} it "
                "before that"
            )

    def _check_kind(self, axis: IterVar, step: str) -> None:
        """Raises `ScheduleError` if another axis is marked: a stage becomes instructions of one
        kind.
        """
        for other, mark in {**self.pragmas, **self.intrinsics}.items():
            if other is not axis:
                raise ScheduleError(
                    f"{step} of {self.name}.{axis}: {self.name} is {mark} from {other} inward "
                    "already"
                )

    def _position(self, axis: IterVar, step: str) -> int:
        for position, leaf in enumerate(self.leaves):
            if leaf is axis:
                return position
        for relation in self.relations:
            if isinstance(relation, Split) and relation.parent is axis:
                raise ScheduleError(
                    f"{step}: {self.name}.{axis} has been split into {relation.outer} and "
                    f"{relation.inner}"
                )
            if isinstance(relation, Fuse) and (relation.outer is axis or relation.inner is axis):
                raise ScheduleError(
                    f"{step}: {self.name}.{axis} has been fused into {relation.fused}"
                )
        raise ScheduleError(
            f"{step}: {axis} is not an axis of {self.name} (its axes are {self._order()})"
        )

    def _own(self, axis: IterVar, step: str) -> IterVar:
        if all(axis is not own for own in self.op.axis):
            raise ScheduleError(f"{step}: {axis} is not an axis of the tensor {self.name}")
        return axis

    def is_computed_at(self, axis: IterVar) -> bool:
        return self.attach is not None and self.attach[1] is axis

    def axis_within(self, around: Stage) -> IterVar | None:
        """The axis of ``around`` at which the stage is computed, perhaps indirectly, or None."""
        stage = self
        while stage.attach is not None:
            stage, axis = stage.attach
            if stage is around:
                return axis
        return None

    def axis_around(self, axis: IterVar) -> IterVar | None:
        """The axis directly outside of ``axis``; None if ``axis`` is outermost."""
        position = self._position(axis, "store_at")
        return self.leaves[position - 1] if position else None

    def is_scheduled(self) -> bool:
        """Whether any step has rearranged or marked the stage's axes."""
        marks = (self.pragmas, self.intrinsics, self.threads, self.unrolled, self.relations)
        unchanged = [*self.op.axis, *self.reduce_axis]
        return any(marks) or [*map(id, self.leaves)] != [*map(id, unchanged)]

    def _order(self) -> str:
        return ", ".join(leaf.name for leaf in self.leaves)

    def __repr__(self) -> str:
        return f"stage {self.name}: {self._order()}"


class Schedule:
    """The stages of all tensors that ``outputs`` need; ``schedule[tensor]`` is a stage."""

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self.outputs = list(outputs)
        # Producers precede their consumers.
        self.stages: list[Stage] = []
        self._by_op: dict[Operation, Stage] = {}
        for output in self.outputs:
            self._add(output)

    def _add(self, tensor: Tensor) -> None:
        if tensor.op in self._by_op:
            return
        if tensor.op.body is not None:
            for access in accesses(tensor.op.body):
                self._add(access.source)
        self._insert(Stage(self, tensor, tensor.op.body), len(self.stages))

    def _insert(self, stage: Stage, position: int) -> None:
        self._by_op[stage.op] = stage
        self.stages.insert(position, stage)

    def __getitem__(self, key: Tensor | Operation) -> Stage:
        op = key.op if isinstance(key, Tensor) else key
        if not isinstance(op, Operation):
            raise ScheduleError(f"s[{key!r}]: index a schedule by a tensor or its op")
        if op not in self._by_op:
            raise ScheduleError(f"{op.name} is not part of this schedule")
        return self._by_op[op]

    def cache_read(
        self, tensor: Tensor, scope: str, readers: Tensor | Iterable[Tensor | Operation]
    ) -> Tensor:
        """Add a copy of ``tensor`` in ``scope``, which ``readers`` read instead."""
        consumers = [self[item] for item in ([readers] if isinstance(readers, Tensor) else readers)]
        if not consumers:
            raise ScheduleError(f"cache_read of {tensor.name}: no reader is given")
        for consumer in consumers:
            if consumer.body is None or all(
                access.source is not tensor for access in accesses(consumer.body)
            ):
                raise ScheduleError(
                    f"cache_read of {tensor.name}: {consumer.name} does not read it"
                )
        axis = [IterVar(f"i{d}", extent, "spatial") for d, extent in enumerate(tensor.shape)]
        source = self[tensor]
        op = Operation(f"{tensor.name}_{scope}", tensor.shape, axis, tensor(*axis), tensor.dtype)
        stage = Stage(self, op.tensor, op.body)
        stage.set_scope(scope)
        for consumer in consumers:
            assert consumer.body is not None
            consumer.body = _read_instead(consumer.body, tensor, op.tensor)
        self._insert(stage, self.stages.index(source) + 1)
        return op.tensor

    def cache_write(self, tensor: Tensor, scope: str) -> Tensor:
        """Add a tensor in ``scope`` that computes ``tensor``; ``tensor`` becomes a copy of it."""
        stage = self[tensor]
        if stage.body is None:
            raise ScheduleError(f"cache_write of {tensor.name}: a placeholder is not computed")
        if stage.is_scheduled():
            raise ScheduleError(
                f"cache_write of {tensor.name}: it is scheduled already; cache_write must be its "
                f"first step"
            )
        axis = [IterVar(old.name, old.extent, "spatial") for old in stage.op.axis]
        values: dict[Var, Affine] = {
            old: Affine({new: 1}) for old, new in zip(stage.op.axis, axis, strict=True)
        }
        op = Operation(
            f"{tensor.name}_{scope}",
            tensor.shape,
            axis,
            substitute(stage.body, values),
            tensor.dtype,
        )
        cache = Stage(self, op.tensor, op.body)
        cache.set_scope(scope)
        self._insert(cache, self.stages.index(stage))
        stage.body = op.tensor(*stage.op.axis)
        stage.reduce_axis = []
        stage.leaves = list(stage.op.axis)
        return op.tensor


def _read_instead(value: Expr, old: Tensor, new: Tensor) -> Expr:
    value = rebuild(value, lambda child: _read_instead(child, old, new))
    if isinstance(value, Access) and value.source is old:
        return Access(new, value.indices)
    return value


def create_schedule(outputs: Operation | Tensor | Sequence[Operation | Tensor]) -> Schedule:
    """The default schedule: every tensor computed whole, in order."""
    items = list(outputs) if isinstance(outputs, Sequence) else [outputs]
    tensors = [item.tensor if isinstance(item, Operation) else item for item in items]
    if not tensors:
        raise ExpressionError("a schedule needs an output")
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise ExpressionError(f"create_schedule: {tensor!r} is not a tensor")
        if tensor.op.body is None:
            raise ExpressionError(f"{tensor.name} is a placeholder: there is nothing to compute")
    return Schedule(tensors)


def thread_axis(name: str) -> IterVar:
    """A thread to bind axes to; the machine has virtual threads, named ``cthread``."""
    if name != "cthread":
        raise ScheduleError(f"thread_axis({name!r}): the only kind of thread is 'cthread'")
    return IterVar(name, None, "thread")


def positive(step: str, value: object) -> int:
    """``value`` as a positive int; raises `ScheduleError`, naming ``step``, otherwise."""
    try:
        number = whole_number(value)
    except ExpressionError as error:
        raise ScheduleError(f"{step}: {error}") from None
    if number < 1:
        raise ScheduleError(f"{step}: {number} is not positive")
    return number
