"""Room that the buffers of a schedule take in scratchpads: `ScheduleStorage`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, reduce
from operator import and_

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.timing import copied_sources
from amaranth_vta.sw.compiler.nest.scopes import scratchpad
from amaranth_vta.sw.compiler.passes.support.alu_chain import chain
from amaranth_vta.sw.compiler.te.expr import Access, Affine, Reduce
from amaranth_vta.sw.compiler.te.schedule import Stage

from .index_ranges import Size
from .regions import Regions, place


class ScheduleStorage:
    """Which stages share a buffer, and whether all buffers fit, as the passes `share_storage` and
    `allocate_scratchpads` decide.
    """

    def __init__(self, regions: Regions, config: Config) -> None:
        self.regions, self.config = regions, config

    @cached_property
    def first(self) -> dict[Stage, Stage]:
        """The stage that fills the buffer of each stage first: where the ALU overwrites an operand
        that nothing else reads, the buffer of the operand.
        """
        first = {stage: stage for stage in self.regions.stages}
        for stage in self.regions.stages:
            reader = self._overwriting(stage)
            if reader is not None and first[reader] is reader:
                first[reader] = first[stage]
        return first

    def _overwriting(self, stage: Stage) -> Stage | None:
        """The stage that overwrites ``stage`` in place; None if there is none."""
        tensor, stages = stage.tensor, self.regions.stages
        readers = [reader for reader, _ in self.regions.readers.get(tensor, ())]
        last = max(readers, key=stages.index, default=None)
        if last is None or stage.scope != "acc" or not is_alu(last) or readers.count(last) > 1:
            return None
        body, axes = self.regions.bodies[last], last.op.axis
        alike = tensor.shape == last.tensor.shape and stage.bank == last.bank
        if isinstance(body, Reduce) or not alike or not _together(stage, last):
            return None
        head, _ = chain(body, lambda access: access.source is tensor, last.name)
        if not isinstance(head, Access) or head.source is not tensor:
            return None
        forms = zip(map(Affine.of, head.indices), axes, strict=True)
        same = all(form is not None and form.same(Affine({axis: 1})) for form, axis in forms)
        return last if same else None

    def copies(self, stage: Stage) -> int:
        """Copies of the buffer that ``stage`` fills first."""
        return max(other.copies for other, first in self.first.items() if first is stage)

    def is_alone(self, stage: Stage) -> bool:
        """Whether the buffer has a single copy, in no chosen bank."""
        return stage.bank is None and self.copies(stage) == 1

    def buffers(self, scope: str) -> list[Stage]:
        """The stages that fill the buffers of ``scope`` first."""
        stages = self.regions.stages
        return [stage for stage in stages if stage.scope == scope and self.first[stage] is stage]

    @property
    def fits(self) -> Size:
        """Whether all buffers fit their scratchpads."""
        depths = {name: scratchpad(self.config, name).depth for name in ("inp", "wgt", "acc")}
        inp, wgt, acc = (
            every(
                sum(self.copies(stage) * self._taken(stage) for stage in live) <= depth
                for live in self._live(scope)
            )
            for scope, depth in depths.items()
        )
        return inp & wgt & (acc | self.in_banks)

    @cached_property
    def in_banks(self) -> Size:
        """Whether the copies of accumulators fit the banks between which they alternate."""
        several = [stage for stage in self.buffers("acc") if not self.is_alone(stage)]
        alternate = all(stage.bank is not None or self.copies(stage) % 2 == 0 for stage in several)
        if not (self.config.overlap and several and alternate):
            return False
        return every(self._fits_banks(live) for live in self._live("acc"))

    def _fits_banks(self, live: Sequence[Stage]) -> Size:
        ends: list[Size] = [0, 0]
        at_end: Size = 0
        for stage in live:
            size = self._taken(stage)
            if self.is_alone(stage):
                at_end = at_end + size
            elif stage.bank is None:
                ends = [np.maximum(*ends) + self.copies(stage) // 2 * size] * 2
            else:
                ends[stage.bank] = ends[stage.bank] + self.copies(stage) * size
        return np.maximum(ends[0], ends[1] + at_end) <= self.config.acc.depth // 2

    def two_cycles(self, stage: Stage, source: Stage) -> Size:
        """The share of tiles for which the ALU takes two cycles to read an operand in the buffer of
        ``stage`` and one in that of ``source``: those in one bank, and not in the part of which the
        ALU has a copy.
        """
        one, other = self.first[stage], self.first[source]
        apart = self.is_alone(other) or {one.bank, other.bank} == {0, 1}
        half, copied = self.config.acc.depth // 2, copied_sources(self.config)
        first, second = self._from(one, half), self._from(other, half)
        together = np.minimum(first, second) + np.minimum(1 - first, 1 - second)
        read = np.maximum(together - self._from(other, self.config.acc.depth - copied), 0)
        return np.where(self.in_banks, float(not apart), read)

    def _from(self, stage: Stage, place: int) -> Size:
        """The share of a buffer from a ``place`` in the accumulators on, without banks."""
        base, size = self._bases[stage], self.copies(stage) * self._taken(stage)
        return np.clip((base + size - place) / size, 0, 1)

    @cached_property
    def _bases(self) -> dict[Stage, Size]:
        """The first accumulator of each buffer, without banks."""
        bases: dict[Stage, Size] = {}
        for live in self._live("acc"):
            end: Size = 0
            for stage in live:
                bases[stage] = end
                end = end + self.copies(stage) * self._taken(stage)
        return bases

    def _taken(self, stage: Stage) -> Size:
        """Tiles of a copy of a buffer; the mean for buffers that are read instead of each other."""
        return self.regions.tiles(stage) * self.regions.share(stage)

    def _live(self, scope: str) -> Iterator[list[Stage]]:
        """Buffers of ``scope`` that are live at the same time: a buffer is live to the end of the
        iteration in which it is filled.
        """
        own = set(self.buffers(scope))

        def within(stages: Sequence[Stage], live: list[Stage]) -> Iterator[list[Stage]]:
            for stage in stages:
                live = [*live, stage] if stage in own else live
                if inside := self._attached_to(stage):
                    yield from within(inside, live)
            yield live

        return within([stage for stage in self.regions.stages if stage.attach is None], [])

    def _attached_to(self, consumer: Stage) -> list[Stage]:
        """The stages that are computed in the loops of ``consumer``, outermost first."""
        attached = [
            (place(*stage.attach), stage)
            for stage in self.regions.stages
            if stage.attach is not None and stage.attach[0] is consumer
        ]
        return [stage for _, stage in sorted(attached, key=lambda item: item[0])]


def every(conditions: Iterable[Size]) -> Size:
    """Whether all of the conditions hold, for each schedule."""
    return reduce(and_, conditions, True)


def is_alu(stage: Stage) -> bool:
    """Whether the ALU computes a stage."""
    return "alu" in stage.pragmas.values()


def _together(one: Stage, other: Stage) -> bool:
    """Whether two stages are computed at the same axis."""
    if one.attach is None or other.attach is None:
        return one.attach is other.attach
    return one.attach[1] is other.attach[1]
