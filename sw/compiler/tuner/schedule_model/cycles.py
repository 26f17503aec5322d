"""Cycles of a schedule: `ScheduleModel`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from math import prod

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import INSTRUCTION_BYTES
from amaranth_vta.sw.compiler.te.schedule import Schedule, Split
from amaranth_vta.sw.compiler.tuner.cost_model import MEMORY_LATENCY, TILE_CYCLES, bus_cycles

from .index_ranges import Size
from .regions import Regions, place, splits
from .storage import ScheduleStorage, every
from .work import StageWork, StageWorks, Unit

# Cycles of an instruction of the compute module besides its work.
_INSTRUCTION_CYCLES = 4


class ScheduleModel:
    """Estimated cycles of a schedule: units overlap if their stages have copies of buffers, and
    share one bus.
    """

    def __init__(self, schedule: Schedule, config: Config) -> None:
        self.config = config
        self.regions = Regions(schedule, mean=True)
        self.storage = ScheduleStorage(self.regions, config)
        works = StageWorks(self.storage)
        self._work = {stage: works.of(stage) for stage in self.regions.stages}

    @property
    def cycles(self) -> Size:
        """Cycles from the first word loaded to the last word stored."""
        load, of_compute, gemm, alu, forward, store = (
            self._total([unit], lambda work: work.cycles) for unit in Unit
        )
        computed = _both(gemm, alu, self._gemm_waits)
        compute = computed + of_compute + forward + self._waits
        compute = _both(compute, store, self._apart if self._stores_in_turn else 1)
        whole = _both(compute, load, np.where(self._prefetches, self._apart, 1))
        whole = np.maximum(whole + self._fill + self._drain, self._bus + computed / self._tiles)
        return whole + TILE_CYCLES * self._tiles * (1 + self._apart)

    def _total(self, units: Iterable[Unit], part: Callable[[StageWork], Size]) -> Size:
        """The sum of a part of the work of ``units``."""
        chosen = set(units)
        return sum(
            self.regions.times(stage) * part(work)
            for stage, work in self._work.items()
            if work.unit in chosen
        )

    @property
    def _bus(self) -> Size:
        """Cycles of the bus, with fetches of instructions."""
        instructions = self._total(Unit, lambda work: work.instructions)
        fetch = bus_cycles(self.config, 1, instructions * INSTRUCTION_BYTES)
        return self._total(Unit, lambda work: work.bus) + fetch

    @property
    def _waits(self) -> Size:
        """Cycles in which compute waits: for its instructions, for memory before its own loads, and
        for the response of a store whose accumulators the next tile needs.
        """
        units = set(Unit) - {Unit.LOAD, Unit.STORE}
        instructions = self._total(units, lambda work: work.instructions)
        responses: Size = 0 if self._stores_in_turn else self._tiles - 1
        for stage, work in self._work.items():
            if work.unit is Unit.LOAD_OF_COMPUTE:
                responses = responses + self.regions.times(stage) - 1
        return _INSTRUCTION_CYCLES * instructions + MEMORY_LATENCY * responses

    @property
    def _fill(self) -> Size:
        """Cycles of the first loads."""
        return sum(work.cycles for work in self._work.values() if work.unit is Unit.LOAD)

    @property
    def _drain(self) -> Size:
        """Cycles to store the last tile."""
        outputs = self.regions.outputs
        return sum(self._work[stage].cycles / self.regions.tile_count(stage) for stage in outputs)

    @cached_property
    def _tiles(self) -> Size:
        """The number of tiles: how often the stages are computed that are computed most often."""
        counts: Size = 1
        for output in self.regions.outputs:
            counts = np.maximum(counts, self.regions.tile_count(output))
        for stage in self.regions.stages:
            counts = np.maximum(counts, self.regions.times(stage))
        return counts

    @cached_property
    def _apart(self) -> Size:
        """The share of tiles that do not overlap with the previous tile: tiles of different sizes
        have loop nests of their own.
        """
        changes: Size = 0
        for stage in self.regions.stages:
            loops = self.regions.loops(stage)
            for part in splits(stage):
                around = self.regions.times(stage) * prod(loops[: place(stage, part.outer)])
                changes = changes + 2 * around * (1 - _is_even(part))
        return np.minimum(changes / self._tiles, 1)

    @property
    def _gemm_waits(self) -> Size:
        """The share of tiles for which GEMM waits for the ALU to compute the previous one: all if
        they are not in different banks, or if a tile of another size follows in a loop nest of its
        own, which begins in the same bank.
        """
        tiled = [stage for stage in self.storage.buffers("acc") if stage.attach is not None]
        if not self.config.overlap or any(self.storage.copies(stage) == 1 for stage in tiled):
            return 1
        even = (_is_even(part) for output in self.regions.outputs for part in splits(output))
        return np.where(self.storage.in_banks & every(even), 0, 1)

    @property
    def _stores_in_turn(self) -> bool:
        """Whether the next tile can be computed while one is stored."""
        stored = {
            self.storage.first[stage]
            for stage in self.regions.stages
            for reader, _ in self.regions.readers.get(stage.tensor, ())
            if reader in self.regions.outputs and stage.scope == "acc"
        }
        return all(self.storage.copies(stage) > 1 for stage in stored)

    @property
    def _prefetches(self) -> Size:
        """Whether all loads of inputs and weights that are repeated can be prefetched."""
        return every(
            (stage.copies > 1) | (self.regions.times(stage) == 1)
            for stage, work in self._work.items()
            if work.unit is Unit.LOAD
        )


def _both(one: Size, other: Size, apart: Size) -> Size:
    """Cycles of two units that overlap but in a share ``apart`` of the time."""
    return np.maximum(one, other) + apart * np.minimum(one, other)


def _is_even(part: Split) -> Size:
    """Whether all parts of a split of a whole axis have the same size."""
    return part.parent.extent is None or part.parent.extent % part.factor == 0
