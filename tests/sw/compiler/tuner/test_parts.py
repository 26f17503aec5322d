"""Parts of workloads compute and write exactly their part of the results."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.average_pool2d import AveragePool2d
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import RoundingShift
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import FixedPoint
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.dense import Dense
from amaranth_vta.sw.compiler.operators.elementwise import Elementwise
from amaranth_vta.sw.compiler.operators.grouped_conv2d import GroupedConv2d
from amaranth_vta.sw.compiler.operators.max_pool2d import MaxPool2d
from amaranth_vta.sw.compiler.te.schedule import ScheduleError
from amaranth_vta.sw.compiler.tuner.parts import WorkloadPart, divided
from amaranth_vta.sw.compiler.tuner.workload import choose, tuned
from amaranth_vta.sw.runtime.runtime import Runtime
from tests.sw.compiler.operators import (
    test_depthwise_chain,
    test_fused_pooling,
)

Bytes = npt.NDArray[np.uint8]
ENV = Environment(PRESETS["tiny-extended"])
SHIFT = RoundingShift(4, -128, 127)
CONV = Conv2d(1, 2, 3, 7, 5, (3, 3), SHIFT, strides=(2, 1), pads=(1, 1, 1, 1), pad_value=3)
DEPTHWISE = Conv2d(2, 1, 1, 6, 5, (3, 3), SHIFT, pads=(1, 0, 1, 0))
WORKLOADS: dict[str, Any] = {
    "conv2d": CONV,
    "pooled": test_fused_pooling.random_case(1, "tiny-extended")[0],
    "carried": test_fused_pooling.carrying_case(3, "tiny-extended")[0],
    "dense": Dense(3, 4, 5, SHIFT),
    "groups": Dense(3, 2, 2, SHIFT, groups=3),
    "heads": Dense(3, 2, 6, SHIFT, heads=3),
    "joined": Dense(3, 2, 2, SHIFT, groups=2, joined=True),
    "grouped": GroupedConv2d(3, DEPTHWISE),
    "expanded": test_depthwise_chain.random_case(1, "tiny-extended", "expanded")[0],
    "projected": test_depthwise_chain.random_case(1, "tiny-extended", "projected")[0],
    "inverted_residual": test_depthwise_chain.random_case(9, "tiny-extended")[0],
    "elementwise": Elementwise(7, "add"),
    "average": AveragePool2d(1, 3, 8, 6, (2, 3), FixedPoint((5,), 7, 4, 0, -100, 120)),
    "maximum": MaxPool2d(1, 3, 8, 6, (3, 3), (2, 2), (1, 1, 1, 1), -128),
}
# A byte of the output before the run.
UNTOUCHED = 0x5A


def results(functions: Sequence[Function]) -> Bytes:
    """The bytes of the output after all of ``functions`` have run on equal random operands."""
    device = FunctionalDevice(ENV.config, 1 << 20, "reverse", report_races=True)
    runtime, rng = Runtime(device), np.random.default_rng(0)
    *operands, output = range(len(functions[0].args))
    buffers = [
        runtime.allocate(functions[0].nbytes(index), "buffer") for index in (*operands, output)
    ]
    for buffer in buffers[:-1]:
        buffer.write(rng.integers(0, 256, buffer.size, np.uint8))
    buffers[-1].write(np.full(buffers[-1].size, UNTOUCHED, np.uint8))
    for function in functions:
        function.run_on(runtime, *buffers)
        runtime.synchronize()
    assert not device.races
    return (
        buffers[-1]
        .read(np.uint8, functions[0].nbytes(output))
        .reshape(*functions[0].args[output].shape[:-2], -1)
    )


@pytest.mark.parametrize("name", WORKLOADS)
def test_parts_write_their_part_of_the_results_of_the_whole(name: str) -> None:
    """Of any axis, divided at a random place."""
    workload, pick = WORKLOADS[name], random.Random(name)
    whole = tuned(workload, ENV, None, name)
    want = results([whole])
    for axis, extent in workload.extents.items():
        place = axis + 1  # in `want`, whose last axis is the bytes of a tile
        assert want.shape[place] == extent
        if extent == 1:
            continue
        cut = pick.randint(1, extent - 1)
        for begin, end in ((0, cut), (cut, extent)):
            got = results(
                [tuned(WorkloadPart(workload, axis, begin, end - begin), ENV, None, name)]
            )
            inside = [slice(None)] * want.ndim
            inside[place] = slice(begin, end)
            np.testing.assert_array_equal(got[tuple(inside)], want[tuple(inside)])
            got[tuple(inside)] = UNTOUCHED
            assert (got == UNTOUCHED).all()


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_tuner_estimates_a_part_of_the_work(name: str) -> None:
    """Parts take fewer cycles than the whole, up to what both take alike, and more than their
    share."""
    workload = WORKLOADS[name]
    whole = choose(workload, ENV.config).cycles
    for axis, extent in workload.extents.items():
        cycles = choose(WorkloadPart(workload, axis, 0, extent), ENV.config).cycles
        assert cycles == pytest.approx(whole, rel=0.2)


def test_work_is_divided_along_the_axis_that_takes_fewest_cycles() -> None:
    config = PRESETS["pynq-extended"]
    deep = Conv2d(1, 32, 32, 7, 7, (3, 3), SHIFT, pads=(1, 1, 1, 1))
    assert {
        (item.axis, item.begin, item.extent) for item in divided(deep, SystemConfig(config, 2))
    } == {
        (-5, 0, 16),
        (-5, 16, 16),
    }
    wide = Conv2d(1, 1, 1, 56, 56, (3, 3), SHIFT, pads=(1, 1, 1, 1))
    assert [
        (item.axis, item.begin, item.extent) for item in divided(wide, SystemConfig(config, 3))
    ] == [
        (-4, 0, 19),
        (-4, 19, 19),
        (-4, 38, 18),
    ]


def test_a_narrow_bus_is_shared_by_fewer_parts_or_along_another_axis() -> None:
    """Parts together transfer at least as much as the whole, which takes the time of a bus."""
    config = PRESETS["pynq-extended"]
    square = Conv2d(1, 8, 8, 28, 28, (1, 1), SHIFT)
    found = {bits: divided(square, SystemConfig(config, 4, bits)) for bits in (64, 128, 256)}
    assert [(len(parts), parts[0].axis) for parts in found.values()] == [(2, -4), (4, -4), (4, -4)]


def test_little_work_is_not_divided() -> None:
    assert divided(Dense(1, 1, 8, SHIFT), SystemConfig(PRESETS["pynq-extended"], 2)) == ()


def test_a_part_is_of_an_output_and_within_its_extent() -> None:
    x = te.placeholder((8, ENV.BATCH, ENV.BLOCK_OUT), "x", ENV.out_dtype)
    between = te.compute(x.shape, lambda *i: x(*i), "between")
    y = te.compute(x.shape, lambda *i: between(*i), "y")
    s = te.create_schedule(y.op)
    with pytest.raises(ScheduleError, match=r"compute_part of y.i0: 5 to 8 is not in 0 to 7"):
        s[y].compute_part(y.op.axis[0], 5, 4)
    with pytest.raises(ScheduleError, match=r"between is not an output"):
        s[between].compute_part(between.op.axis[0], 0, 4)
