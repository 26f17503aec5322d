"""Every operator with knobs reports the schedules it considered, through one protocol."""

from __future__ import annotations

from typing import Any

import pytest

import amaranth_vta as vta
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.average_pool2d import AveragePool2d
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import RoundingShift
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import FixedPoint
from amaranth_vta.sw.compiler.operators.concatenate import Concatenate
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.dense import Dense
from amaranth_vta.sw.compiler.operators.elementwise import Elementwise
from amaranth_vta.sw.compiler.operators.gather_tiles import AffinePiece, GatherTiles, SourcePart
from amaranth_vta.sw.compiler.operators.grouped_conv2d import GroupedConv2d
from amaranth_vta.sw.compiler.operators.max_pool2d import MaxPool2d
from amaranth_vta.sw.compiler.operators.permute import Permute
from amaranth_vta.sw.compiler.operators.select_channels import SelectChannels
from amaranth_vta.sw.compiler.operators.transposed_conv2d import TransposedConv2d
from amaranth_vta.sw.compiler.operators.upsample2d import Upsample2d
from amaranth_vta.sw.compiler.operators.weighted_sum import WeightedSum
from amaranth_vta.sw.compiler.tuner.workload import Workload, tuned

SHIFT, HALF = RoundingShift(5, -128, 127), FixedPoint((1,), 1, 1, 0, -128, 127)
WORKLOADS: list[Workload[Any]] = [
    AveragePool2d(1, 2, 7, 7, (7, 7), HALF),
    Concatenate(1, (4, 8), 12),
    Conv2d(1, 2, 3, 8, 8, (3, 3), SHIFT, pads=(1, 1, 1, 1)),
    Dense(2, 8, 6, SHIFT),
    Elementwise(50, "add"),
    GatherTiles((30,), (15,), (SourcePart(15, 0, ((AffinePiece(15, 0, 2),),)),), ((0, 15),)),
    GroupedConv2d(3, Conv2d(1, 1, 1, 8, 8, (3, 3), SHIFT)),
    MaxPool2d(1, 2, 8, 8, (2, 2), (2, 2)),
    Permute((4, 2, 9), (0, 2, 1)),
    SelectChannels(1, (3, 6, 2), 12, (9, 0, 1, 3, 5)),
    TransposedConv2d(1, 2, 2, 5, 5, (4, 4), SHIFT, (2, 2), (1, 1, 1, 1)),
    Upsample2d(1, 2, 4, 4, (2, 2)),
    WeightedSum(50, HALF),
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: type(workload).__name__)
def test_the_first_knobs_of_the_table_are_those_that_are_built(workload: Workload[Any]) -> None:
    env = Environment(PRESETS["tiny-extended"])
    choice = vta.explain(workload, env)
    lines = str(choice).splitlines()
    assert lines[0].split()[0] == "cycles"
    assert lines[0].split()[-1] == "knobs"
    best = choice.best
    numbers = [f"{name}={value}" for name, value in vars(best).items() if type(value) is int]
    assert set(numbers) <= set(lines[1].split())
    chosen = tuned(workload, env, None, "chosen")
    assert tuned(workload, env, best, "chosen").source == chosen.source
    assert tuned(workload, env, list(choice.ranked)[-1], "chosen").source != chosen.source
