"""Regions of the stages of a schedule: `Regions`.

The region of a stage is what one iteration of the loop that it is computed at reads of it. It
follows from the index expressions of its readers, as in the loop nest (`passes/infer_bounds.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from amaranth_vta.sw.compiler.passes.support.inlined import inlined_bodies
from amaranth_vta.sw.compiler.te.expr import Access, IterVar, Var
from amaranth_vta.sw.compiler.te.schedule import Schedule, Split, Stage
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.te.traverse import accesses

from .index_ranges import Range, Size, index_range

# A loop of a stage.
Loop = tuple[Stage, IterVar]


class _Read(NamedTuple):
    """What an iteration reads of a tensor: a range along each axis, relative to the iteration, and
    the share of the iterations that read anything.
    """

    ranges: list[Range]
    share: Size


class Regions:
    """The regions of all stages, and their loops. With ``mean``, tiles have their mean size,
    fractions included; otherwise the size of the largest.

    ``stages`` are those that compute something, and ``bodies`` their expressions, without inlined
    stages. ``readers`` are the stages that read a tensor, with each access.
    """

    def __init__(self, schedule: Schedule, mean: bool = False) -> None:
        self.schedule, self.mean = schedule, mean
        self.bodies = inlined_bodies(schedule)
        self.stages = [stage for stage in self.bodies if not stage.inlined]
        self.outputs = [schedule[tensor] for tensor in schedule.outputs]
        self.readers: dict[Tensor, list[tuple[Stage, Access]]] = {}
        for stage in self.stages:
            for access in accesses(self.bodies[stage]):
                self.readers.setdefault(access.source, []).append((stage, access))
        self._read: dict[tuple[Stage, Var | None], _Read] = {}

    def region(self, stage: Stage) -> list[Size]:
        """The extents of the part of a tensor that is computed at a time."""
        if stage in self.outputs:
            return list(stage.tensor.shape)
        ranges = self._read_within(stage, stage.attach).ranges
        return [high - low + 1 for low, high in ranges]

    def tiles(self, stage: Stage) -> Size:
        """The number of tiles of the machine in a region."""
        return prod(self.region(stage)[:-2])

    def share(self, stage: Stage) -> Size:
        """The share of the iterations around a stage that read it: others read another tensor
        instead.
        """
        return 1 if stage.attach is None else self._read_within(stage, stage.attach).share

    def times(self, stage: Stage) -> Size:
        """How often a stage is computed."""
        if stage.attach is None:
            return 1
        consumer, axis = stage.attach
        loops = self.loops(consumer)[: place(consumer, axis) + 1]
        return self.times(consumer) * prod(loops) * self.share(stage)

    def tile_count(self, output: Stage) -> Size:
        """The number of parts in which an output is stored."""
        (axis,) = output.pragmas
        return prod(self.loops(output)[: place(output, axis)])

    def loops(self, stage: Stage) -> list[Size]:
        """The number of iterations of each loop of a stage, outermost first."""
        sizes: dict[Var, Size] = dict(zip(stage.op.axis, self.region(stage), strict=True))
        sizes |= {axis: axis.extent for axis in stage.reduce_axis}
        for part in splits(stage):
            whole = sizes[part.parent]
            largest = np.minimum(part.factor, whole)
            outer = sizes[part.outer] = -(-whole // largest)
            sizes[part.inner] = whole / outer if self.mean else largest
        return [sizes[leaf] for leaf in stage.leaves]

    def extents_within(self, stage: Stage, axis: IterVar) -> dict[Var, Size]:
        """How far the axes of a stage vary in its loops within ``axis``, in one iteration."""
        loops: dict[Var, Size] = dict(zip(stage.leaves, self.loops(stage), strict=True))
        sizes, outside = dict(loops), True
        for leaf in stage.leaves:
            if outside:
                sizes[leaf] = 1
            outside &= leaf is not axis
        for part in reversed(splits(stage)):
            step = loops[part.inner]
            sizes[part.parent] = (sizes[part.outer] - 1) * step + sizes[part.inner]
            loops[part.parent] = loops[part.outer] * step
        return sizes

    def _read_within(self, stage: Stage, loop: Loop | None) -> _Read:
        """What one iteration of a ``loop`` reads of ``stage``, or everything that is read."""
        key = stage, None if loop is None else loop[1]
        if key not in self._read:
            self._read[key] = self._reading(stage, loop)
        return self._read[key]

    def _reading(self, stage: Stage, loop: Loop | None) -> _Read:
        ranges: list[Range] = []
        share: Size = 0.0
        for reader, access in self.readers[stage.tensor]:
            varying = self._varying(reader, loop)
            found = [index_range(index, varying) for index in access.indices]
            ranges = [
                (np.minimum(own[0], other[0]), np.maximum(own[1], other[1]))
                for own, other in zip(ranges or found, found, strict=True)
            ]
            share = np.maximum(share, _share(reader, access, found))
        limited = [
            (low, low + np.minimum(high - low + 1, whole) - 1)
            for (low, high), whole in zip(ranges, stage.tensor.shape, strict=True)
        ]
        return _Read(limited, share)

    def _varying(self, stage: Stage, loop: Loop | None) -> dict[Var, Range]:
        """The range of each axis of ``stage`` in one iteration of a ``loop``, or in all."""
        if loop is not None and stage is loop[0]:
            extents = self.extents_within(*loop)
            return {own: (0, extent - 1) for own, extent in extents.items()}
        if stage in self.outputs:
            return _whole([*stage.op.axis, *stage.reduce_axis])
        ranges = self._read_within(stage, loop).ranges
        return dict(zip(stage.op.axis, ranges, strict=True)) | _whole(stage.reduce_axis)


def splits(stage: Stage) -> list[Split]:
    """The splits of the loops of a stage, in their order."""
    return [part for part in stage.relations if isinstance(part, Split)]


def place(stage: Stage, axis: IterVar) -> int:
    """The position of a loop of a stage, from outside."""
    return next(number for number, leaf in enumerate(stage.leaves) if leaf is axis)


def _whole(axes: Sequence[IterVar]) -> dict[Var, Range]:
    return {axis: axis.interval for axis in axes}


def _share(reader: Stage, access: Access, found: Sequence[Range]) -> Size:
    """The share of iterations in which an index is within the tensor, if its ranges in an iteration
    are those ``found``.
    """
    everything = _whole([*reader.op.axis, *reader.reduce_axis])
    share: Size = 1.0
    for index, (low, high), extent in zip(access.indices, found, access.source.shape, strict=True):
        first, last = index_range(index, everything)
        all_indices = last - first + 1
        met = np.maximum(np.minimum(high - low + 1, all_indices), extent)
        share = share * np.minimum(met / all_indices, 1.0)
    return share
