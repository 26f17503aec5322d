"""Work of the stages of a schedule for the units of the machine: `StageWork`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import prod
from typing import NamedTuple

import numpy as np

from amaranth_vta.hw.isa import AluOp
from amaranth_vta.sw.compiler.passes.support.alu_chain import Step, chain, constant, joined
from amaranth_vta.sw.compiler.te.dtypes import dtype_bits
from amaranth_vta.sw.compiler.te.expr import Access, Affine, Reduce
from amaranth_vta.sw.compiler.te.schedule import Stage
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.te.traverse import accesses
from amaranth_vta.sw.compiler.tuner.cost_model import bus_cycles, round_trips

from .index_ranges import Size, steps, strides
from .regions import place
from .storage import ScheduleStorage, is_alu


class Unit(Enum):
    """What executes a stage. Loads of accumulators are executed by the compute module."""

    LOAD = "load"
    LOAD_OF_COMPUTE = "load of compute"
    GEMM = "gemm"
    ALU = "alu"
    FORWARD = "forward"
    STORE = "store"


class StageWork(NamedTuple):
    """Cycles of a ``unit`` each time that a stage is computed, the number of instructions, and the
    cycles in which they use the bus.
    """

    unit: Unit
    cycles: Size
    instructions: Size
    bus: Size = 0


class StageWorks:
    """The work of all stages."""

    def __init__(self, storage: ScheduleStorage) -> None:
        self.storage, self.regions, self.config = storage, storage.regions, storage.config

    def of(self, stage: Stage) -> StageWork:
        """The work of a stage."""
        if stage in self.regions.outputs:
            return self._store(stage)
        if is_alu(stage):
            return self._arithmetic(stage)
        if stage.intrinsics:
            return self._products(stage)
        for access in accesses(self.regions.bodies[stage]):
            if self._is_in_dram(access.source):
                return self._load(stage, access)
        return StageWork(Unit.FORWARD, self.regions.tiles(stage), 1)

    def _is_in_dram(self, tensor: Tensor) -> bool:
        return tensor.op.body is None or self.regions.schedule[tensor].scope == "dram"

    def _load(self, stage: Stage, access: Access) -> StageWork:
        """Loads of a region; what other accesses read is read instead of this one."""
        unit = Unit.LOAD_OF_COMPUTE if stage.scope == "acc" else Unit.LOAD
        source, region = access.source, self.regions.region(stage)[:-2]
        limits = {}
        for index, whole in zip(access.indices, source.shape, strict=True):
            form = Affine.of(index)
            if form is not None and len(form.terms) == 1:
                limits.update(dict.fromkeys(form.terms, whole))
        # Padding is not loaded.
        sizes = [
            np.minimum(size, limits.get(axis, size))
            for size, axis in zip(region, stage.op.axis, strict=False)
        ]
        from_dram = steps(stage, access.indices, source.shape[:-2])
        return self._transfer(unit, source, sizes, (from_dram, strides(region)))

    def _store(self, stage: Stage) -> StageWork:
        """Stores of all tiles of an output."""
        (axis,) = stage.pragmas
        around = stage.leaves[place(stage, axis) - 1]
        within = self.regions.extents_within(stage, around)
        access = next(accesses(self.regions.bodies[stage]))
        region = self.regions.region(self.regions.schedule[access.source])[:-2]
        both = strides(stage.tensor.shape[:-2]), steps(stage, access.indices, region)
        sizes = [within[own] for own in stage.op.axis[:-2]]
        unit, *each = self._transfer(Unit.STORE, stage.tensor, sizes, both)
        count = self.regions.tile_count(stage)
        return StageWork(unit, *(count * part for part in each))

    def _transfer(
        self,
        unit: Unit,
        tensor: Tensor,
        sizes: Sequence[Size],
        distances: tuple[Sequence[Size], Sequence[Size]],
    ) -> StageWork:
        """The transfer of tiles of ``tensor`` along axes of ``sizes``, outermost first, given the
        ``distances`` of tiles along each axis in DRAM and in the scratchpad.
        """
        run: Size = 1
        contiguous: Size = True
        rows: Size = 1
        rows_of_one: Size = 1
        for size, *places in zip(*(part[::-1] for part in (sizes, *distances)), strict=True):
            contiguous = contiguous & (((places[0] == run) & (places[1] == run)) | (size == 1))
            run = np.where(contiguous, run * size, run)
            # The rows of an instruction are at one distance.
            rows_of_one = np.where(contiguous | (rows > 1), rows_of_one, size)
            rows = np.where(contiguous, rows, rows * size)
        element_bytes = prod(tensor.shape[-2:]) * dtype_bits(tensor.dtype) / 8
        row_bytes = np.ceil(run * element_bytes)
        bus = bus_cycles(self.config, rows, row_bytes)
        # While transfers follow one another, bursts of short rows wait for the latency.
        cycles = np.maximum(bus, round_trips(self.config, rows, row_bytes))
        return StageWork(unit, cycles, rows / rows_of_one, bus)

    def _products(self, stage: Stage) -> StageWork:
        (axis,) = stage.intrinsics
        cycles = prod(self.regions.loops(stage)[: place(stage, axis)])
        if not self.config.overwrite:
            # Accumulators are reset before the first products.
            cycles = cycles + self.regions.tiles(stage)
        return StageWork(Unit.GEMM, cycles, 1)

    def _arithmetic(self, stage: Stage) -> StageWork:
        body, config = self.regions.bodies[stage], self.config
        first, following = chain(
            body.value if isinstance(body, Reduce) else body,
            lambda access: self._in_place(stage, access),
            stage.name,
        )
        cleared, repeated = 0, 1
        if isinstance(body, Reduce):
            cleared, repeated = 1, prod(axis.extent or 1 for axis in body.axes)
            following = [Step(AluOp.ADD, first), *following]
        elif isinstance(first, int):
            cleared, following = 1, [*constant(first), *following]
        elif not self._in_place(stage, first):
            cleared, following = 1, [Step(AluOp.ADD, first), *following]
        each = sum(self._cycles(stage, step) for step in joined(following, config))
        cycles = self.regions.tiles(stage) * (cleared * config.lane_columns + repeated * each)
        return StageWork(Unit.ALU, cycles, cleared + len(following))

    def _in_place(self, stage: Stage, access: Access) -> bool:
        first, source = self.storage.first, self.regions.schedule[access.source]
        return source in first and first[source] is first[stage]

    def _cycles(self, stage: Stage, step: Step) -> Size:
        """Cycles of an ALU operation on a tile: at least two if both operands are in one bank."""
        each = self.config.lane_columns
        if not self.config.overlap or not isinstance(step.operand, Access) or step.following:
            return each
        source = self.regions.schedule[step.operand.source]
        return each + max(2 - each, 0) * self.storage.two_cycles(stage, source)
