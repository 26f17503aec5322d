"""Convolutions with a second result: a table lookup of the first, stored in the same loops."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import PerChannelScale
from amaranth_vta.sw.compiler.operators.building_blocks.pooling import Pooling
from amaranth_vta.sw.compiler.operators.building_blocks.steps import LookupTable, PerChannelLine
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.tuner.parts import WorkloadPart
from amaranth_vta.sw.compiler.tuner.workload import choose, tuned
from tests.support.seeds import each_seed

ENV = Environment(PRESETS["tiny-extended"])
TABLE = LookupTable(ENV.config.table_elements)


class Case:
    """A random convolution with two results, its operands, and both results."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        batch, inputs, outputs = (int(size) for size in rng.integers(1, 4, 3))
        height, width = (int(size) for size in rng.integers(2, 9, 2))
        plain = Conv2d(
            *(batch, inputs, outputs, height, width, (1, 3), PerChannelScale()),
            pads=(0, 1, 0, 1),
            pad_value=5,
        )
        both = plain.with_second(TABLE)
        assert both is not None
        self.workload = both
        *given, y = plain.scheduled(ENV, choose(plain, ENV.config).best)[1]
        self.operands: list[Any] = [
            rng.integers(-20, 21, arg.shape).astype(np.int8) for arg in given[:2]
        ]
        scale = rng.uniform(0.02, 0.1, outputs * ENV.BLOCK_OUT)
        bias = rng.integers(-90, 90, scale.size)
        channels = te.requantization_parameters(bias, scale, 4, -120, 119)
        tiles = channels.T.reshape(-1, outputs, ENV.BLOCK_OUT).swapaxes(0, 1)[:, :, None]
        self.operands.append(tiles.repeat(ENV.BATCH, axis=2).astype(np.int32))
        first = te.evaluate(y, dict(zip(given, self.operands, strict=True)))
        table = rng.integers(-128, 128, 256)
        self.operands.append(te.table_tiles(table, ENV.config))
        self.want = first, table[first.astype(np.int64) + 128]
        assert all(np.unique(result).size > 8 for result in self.want)

    def check(self, run: Any, workload: Any, knobs: Any = None, **options: Any) -> None:
        run(tuned(workload, ENV, knobs, "product"), self.operands, **options)
        for got, want in zip(run.outputs, self.want, strict=True):
            np.testing.assert_array_equal(got, want)


@each_seed(range(12))
def test_both_results_are_stored(seed: int, run: Any) -> None:
    case, rng = Case(seed), np.random.default_rng(seed)
    case.check(run, case.workload)
    ranked = list(islice(choose(case.workload, ENV.config).ranked, 20))
    for place in rng.integers(0, len(ranked), 2):
        case.check(run, case.workload, ranked[place])


def test_both_results_are_stored_on_the_rtl(run: Any) -> None:
    case = Case(3)
    case.check(run, case.workload, device="rtl")


@each_seed(range(6))
def test_parts_store_their_part_of_both_results(seed: int, run: Any) -> None:
    case = Case(seed)
    for axis, extent in case.workload.extents.items():
        if extent > 1:
            part = WorkloadPart(case.workload, axis, extent // 2, extent - extent // 2)
            run(tuned(part, ENV, None, "product"), case.operands)
            where = [slice(None)] * 6
            where[axis] = slice(extent // 2, None)
            for got, want in zip(run.outputs, case.want, strict=True):
                np.testing.assert_array_equal(got[tuple(where)], want[tuple(where)])


def test_the_second_result_costs_a_lookup_of_a_copy(run: Any) -> None:
    case = Case(3)
    run(tuned(case.workload, ENV, None, "product"), case.operands)
    operations = run.counters["alu_uops"]
    vectors = case.want[0].size // (ENV.BATCH * ENV.BLOCK_OUT)
    assert operations == vectors * case.workload.operations == vectors * 4


@pytest.mark.parametrize("step", [TABLE, PerChannelLine()])
def test_nothing_follows_a_second_result(step: Any) -> None:
    workload = Case(3).workload
    assert workload.followed_by(step) is None
    assert workload.with_second(TABLE) is None
    pooled = replace(
        workload,
        requantize=PerChannelScale(),
        pooling=Pooling((1, 1), (2, 2), (2, 2)),
    )
    assert pooled.with_second(TABLE) is None
