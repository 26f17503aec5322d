"""Cycles of a schedule: `ScheduleModel`."""

from __future__ import annotations

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
from .work import StageWorks, Unit

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
        busy: dict[Unit, Size] = dict.fromkeys(Unit, 0)
        instructions: Size = 0
        bus: Size = 0
        waits: Size = 0
        first_load: Size = 0
        last_store: Size = 0
        for stage, work in self._work.items():
            times = self.regions.times(stage)
            busy[work.unit] = busy[work.unit] + times * work.cycles
            instructions = instructions + times * work.instructions
            bus = bus + times * work.bus
            match work.unit:
                case Unit.LOAD:
                    first_load = first_load + work.cycles
                case Unit.STORE:
                    last_store = last_store + work.cycles / self.regions.tile_count(stage)
                case _:
                    waits = waits + times * work.instructions * _INSTRUCTION_CYCLES
            if work.unit is Unit.LOAD_OF_COMPUTE:
                waits = waits + (times - 1) * MEMORY_LATENCY
        load, of_compute, store = busy[Unit.LOAD], busy[Unit.LOAD_OF_COMPUTE], busy[Unit.STORE]
        computed = _both(busy[Unit.GEMM], busy[Unit.ALU], self._gemm_waits)
        fetch = bus_cycles(self.config, 1, instructions * INSTRUCTION_BYTES)
        bus = bus + fetch + computed / self._tiles
        in_turn = self._stores_in_turn
        # Otherwise the next tile waits for the response of the store.
        waits = waits + (0 if in_turn else MEMORY_LATENCY * (self._tiles - 1))
        compute = computed + of_compute + busy[Unit.FORWARD] + waits
        compute = _both(compute, store, self._apart if in_turn else 1)
        whole = _both(compute, load, np.where(self._prefetches, self._apart, 1))
        whole = np.maximum(whole + first_load + last_store, bus)
        return whole + TILE_CYCLES * self._tiles * (1 + self._apart)

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
