"""The model of a schedule agrees with its loop nest and with its program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from amaranth_vta.explore.tuning import estimated
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.lower import lower
from amaranth_vta.sw.compiler.nest.ir import Allocate, walk
from amaranth_vta.sw.compiler.nest.scopes import copy_elements
from amaranth_vta.sw.compiler.operators.average_pool2d import AveragePool2d
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import FixedPoint
from amaranth_vta.sw.compiler.operators.concatenate import Concatenate
from amaranth_vta.sw.compiler.operators.elementwise import Elementwise
from amaranth_vta.sw.compiler.operators.lookup import PointwiseLookup
from amaranth_vta.sw.compiler.operators.max_pool2d import MaxPool2d
from amaranth_vta.sw.compiler.operators.normalization import Normalization
from amaranth_vta.sw.compiler.operators.permute import Permute
from amaranth_vta.sw.compiler.operators.rotation import Rotation
from amaranth_vta.sw.compiler.operators.softmax import Softmax
from amaranth_vta.sw.compiler.operators.stack_rows import StackRows
from amaranth_vta.sw.compiler.operators.upsample2d import Upsample2d
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile, Tiled
from amaranth_vta.sw.compiler.tuner.schedule_model.cycles import ScheduleModel
from amaranth_vta.sw.compiler.tuner.schedule_model.regions import Regions
from amaranth_vta.sw.compiler.tuner.schedule_model.storage import ScheduleStorage
from amaranth_vta.sw.compiler.tuner.workload import choose, tuned

MEAN = FixedPoint(factors=(1,), addend=0, shift=3, zero_point=0, low=-128, high=127)
WORKLOADS: list[Tiled] = [
    MaxPool2d(1, 3, 17, 18, (3, 3), (2, 2), (1, 1, 1, 1), -128),
    MaxPool2d(1, 4, 16, 12, (2, 2), (2, 2)),
    AveragePool2d(1, 5, 8, 8, (8, 8), MEAN),
    AveragePool2d(1, 3, 9, 7, (3, 2), MEAN, (2, 1), (1, 0, 1, 0)),
    Concatenate(1, (32, 64, 16), 49),
    Upsample2d(1, 3, 5, 7, (2, 3)),
    Permute((12, 18), (1, 0)),
    StackRows(2, 40, 3, by_columns=True),
    Elementwise(60, "add", low=-128, high=127),
    PointwiseLookup(90, 4),
    Softmax(1, 12, 3, 4, masked=True),
    Normalization(30, 6, 1 << 4, True),
    Rotation(1, 12, 3, 2),
]
CONFIG = PRESETS["pynq-extended"]


def name(workload: Tiled) -> str:
    return type(workload).__name__


def some_tiles(workload: Tiled, config: Config, most: int) -> Iterator[OutputTile]:
    """Knobs with tiles of all sizes."""
    tiles = workload.candidate_tiles(config)
    chosen = np.random.default_rng(5).permutation(len(tiles))[:most]
    for number in chosen:
        for in_turn in (False, True) if workload.takes_turns else (False,):
            yield OutputTile(tuple(tiles[number].tolist()), in_turn)


# Where a tile reads several sources, the model takes the mean of their parts.
@pytest.mark.parametrize(
    "workload", [item for item in WORKLOADS if not isinstance(item, Concatenate)], ids=name
)
def test_regions_are_the_buffers_of_the_loop_nest(workload: Tiled) -> None:
    for knobs in some_tiles(workload, CONFIG, 6):
        schedule, args = workload.scheduled(Environment(CONFIG), knobs)
        lowered = lower(schedule, args, env=Environment(CONFIG))
        found: dict[str, tuple[int, int]] = {}
        for part in walk(lowered.nest.body):
            if isinstance(part, Allocate):
                size = copy_elements(part.buffer, CONFIG), part.buffer.copies
                found[part.buffer.name] = max(found.get(part.buffer.name, (0, 0)), size)
        regions = Regions(schedule)
        storage = ScheduleStorage(regions, CONFIG)
        modelled = {
            stage.name: (int(regions.tiles(stage)), storage.copies(stage))
            for scope in ("inp", "wgt", "acc")
            for stage in storage.buffers(scope)
        }
        assert modelled == found, knobs


@pytest.mark.parametrize("preset", ["pynq-extended", "tiny-extended"])
@pytest.mark.parametrize("workload", WORKLOADS, ids=name)
def test_tiles_that_fit_can_be_built_and_no_others(workload: Tiled, preset: str) -> None:
    config = PRESETS[preset]
    if isinstance(workload, PointwiseLookup):
        workload = PointwiseLookup(90, config.table_elements)
    for knobs in some_tiles(workload, config, 6):
        schedule, args = workload.scheduled(Environment(config), knobs)
        problem = lower(schedule, args, env=Environment(config)).problem
        assert ScheduleStorage(Regions(schedule), config).fits == (problem is None), (
            f"{knobs}: {problem}"
        )


def assert_near(workload: Tiled, config: Config, knobs: OutputTile) -> None:
    function = tuned(workload, Environment(config), knobs, "tile")
    schedule, _ = workload.scheduled(Environment(config), knobs)
    cycles = float(ScheduleModel(schedule, config).cycles)
    assert 0.8 < cycles / estimated(function, config, "ddr") < 1.25, knobs


@pytest.mark.parametrize("workload", WORKLOADS, ids=name)
def test_cycles_are_near_the_estimate_of_the_program(workload: Tiled) -> None:
    assert_near(workload, CONFIG, choose(workload, CONFIG).best)


def test_cycles_of_sums_by_the_alu_are_near() -> None:
    """Where input tiles differ from output tiles, the ALU adds the pixels of an average."""
    pool, config = AveragePool2d(1, 2, 12, 12, (5, 5), MEAN), PRESETS["block32"]
    config = replace(config, log_block_out=config.log_block_in - 1)
    assert not pool.by_gemm(Environment(config))
    assert_near(pool, config, choose(pool, config).best)


def test_cycles_of_rows_that_are_contiguous_in_one_memory_are_near() -> None:
    """Equal rows are stored one by one: they follow each other in DRAM only."""
    assert_near(Upsample2d(1, 8, 24, 1, (4, 1)), CONFIG, OutputTile((1, 1, 24, 1), True))


def test_copies_alternate_between_banks() -> None:
    workload, env = Upsample2d(1, 2, 20, 25, (1, 2)), Environment(CONFIG)
    schedule, args = workload.scheduled(env, OutputTile((1, 1, 10, 25), True))
    nest = lower(schedule, args, env=env).nest
    buffers = [part.buffer for part in walk(nest.body) if isinstance(part, Allocate)]
    assert [buffer.pitch for buffer in buffers] == [CONFIG.acc.depth // 2] * 2
    assert ScheduleStorage(Regions(schedule), CONFIG).in_banks


@pytest.mark.parametrize("workload", WORKLOADS, ids=name)
def test_arrays_of_factors_stand_for_several_schedules(workload: Tiled) -> None:
    tiles = workload.candidate_tiles(CONFIG)[::15]
    env, columns = Environment(CONFIG), tuple(tiles.T)
    schedule, _ = workload.scheduled(env, OutputTile(columns))
    cycles = np.broadcast_to(ScheduleModel(schedule, CONFIG).cycles, len(tiles))
    fits = np.broadcast_to(ScheduleStorage(Regions(schedule), CONFIG).fits, len(tiles))
    for number, tile in enumerate(tiles.tolist()):
        one, _ = workload.scheduled(env, OutputTile(tuple(tile)))
        assert cycles[number] == pytest.approx(float(ScheduleModel(one, CONFIG).cycles))
        assert fits[number] == ScheduleStorage(Regions(one), CONFIG).fits
