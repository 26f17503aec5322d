"""The cost model: its parts, and its estimates of schedules against the cycles of the compiled
machine.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import amaranth_vta as vta
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import INSTRUCTION_BYTES
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import (
    PerChannelScale,
    RoundingShift,
)
from amaranth_vta.sw.compiler.operators.building_blocks.pooling import Pooling
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d, conv2d
from amaranth_vta.sw.compiler.operators.dense import Dense, dense
from amaranth_vta.sw.compiler.tuner import cost_model as model
from amaranth_vta.sw.compiler.tuner.buffer_copies import BufferCopies
from amaranth_vta.sw.compiler.tuner.cost_model import Pipeline
from amaranth_vta.sw.compiler.tuner.product_walk import estimated
from amaranth_vta.sw.compiler.tuner.tiled_product import Tiling
from amaranth_vta.sw.compiler.tuner.workload import choose
from amaranth_vta.sw.runtime.runtime import Runtime

TINY = PRESETS["tiny-extended"]
SHIFT = RoundingShift(5, -128, 127)


def test_long_rows_take_the_whole_bus_and_short_ones_wait_for_the_memory() -> None:
    size, share = TINY.bus_bytes, model.bus_share(TINY)
    assert model.bus_cycles(TINY, 4, 100 * size) == pytest.approx(400 / share)
    # Eight bursts of one word are in flight at a time: seven round trips, and one more word.
    assert model.bus_cycles(TINY, 57, size) == 7 * (48 + 1) + 1
    slow = replace(TINY, log_word_cycles=2)
    assert model.bus_cycles(slow, 4, 100 * size) == 4 * model.bus_cycles(TINY, 4, 100 * size)


def test_loads_overlap_gemm_as_far_as_there_are_copies() -> None:
    cycles = {}
    for copies in (1, 2):
        pipeline = Pipeline(TINY)
        buffer = BufferCopies(pipeline, copies)
        for _ in range(10):
            buffer.load(None, 1, 380 * TINY.bus_bytes)
            buffer.use(pipeline.gemm(500, [buffer.loaded]))
        estimate = pipeline.estimate()
        assert estimate.gemm == 5000
        assert estimate.bus == pytest.approx(3800 / model.bus_share(TINY))
        cycles[copies] = estimate
    assert cycles[1].cycles > 5000 + 3800 + 1000
    assert cycles[2].waits == pytest.approx(0, abs=1)
    assert cycles[2].cycles < 5000 + 400 + 200


@pytest.mark.parametrize("prefetched", [0, 1000, 10_000])
def test_only_the_first_load_is_prefetched(prefetched: int) -> None:
    words = 500

    def cycles(bytes_there: float) -> float:
        pipeline = Pipeline(TINY)
        buffer = BufferCopies(pipeline, 1, bytes_there)
        for _ in range(2):
            buffer.load(None, 4, words // 4 * TINY.bus_bytes)
            buffer.use(pipeline.gemm(1, [buffer.loaded]))
        return pipeline.estimate().cycles

    hidden = min(prefetched / TINY.bus_bytes, words) / model.bus_share(TINY)
    assert cycles(0) - cycles(prefetched) == pytest.approx(hidden, abs=2 * model.MEMORY_LATENCY)
    assert cycles(prefetched) > words


@pytest.mark.parametrize(("config", "overlaps"), [("tiny", False), ("tiny-extended", True)])
def test_the_alu_overlaps_gemm_where_the_machine_can(config: str, overlaps: bool) -> None:
    pipeline = Pipeline(PRESETS[config])
    for _ in range(10):
        pipeline.alu(100, [pipeline.gemm(100, [])])
    cycles = pipeline.estimate().cycles
    assert (cycles < 1400) == overlaps
    assert cycles > (1000 if overlaps else 2000)


def test_fetches_delay_loads_only_where_the_bus_is_never_idle() -> None:
    words, loads, more = 100, 20, 5
    fetch = more * INSTRUCTION_BYTES / TINY.bus_bytes / model.bus_share(TINY)

    def cycles(row_words: int, instructions: int) -> float:
        pipeline = Pipeline(TINY)
        for _ in range(loads):
            pipeline.load(words // row_words, row_words * TINY.bus_bytes, (), instructions)
        return pipeline.estimate().cycles

    assert cycles(words, 1 + more) - cycles(words, 1) == pytest.approx((loads - 1) * fetch, rel=0.1)
    # Reads of one word leave the bus idle for most of the latency.
    assert cycles(1, 1 + more) == cycles(1, 1)


def test_stores_share_the_bus_with_loads() -> None:
    alone, together = Pipeline(TINY), Pipeline(TINY)
    alone.load(1, 1000 * TINY.bus_bytes)
    together.load(1, 1000 * TINY.bus_bytes)
    together.store(1, 1000 * TINY.bus_bytes, [])
    assert together.estimate().cycles > 1.9 * alone.estimate().cycles


CONVOLUTION = Conv2d(1, 4, 4, 14, 14, (3, 3), PerChannelScale(), pads=(1, 1, 1, 1))
STRIDED = Conv2d(1, 4, 8, 14, 14, (1, 1), PerChannelScale(), strides=(2, 2))
BY_SHIFT = Conv2d(1, 6, 4, 12, 12, (1, 1), SHIFT)
# Workload, knobs, and the maximum relative error of the estimate.
CASES: list[tuple[Conv2d | Dense, Tiling | None, float]] = [
    (CONVOLUTION, None, 0.03),
    (CONVOLUTION, Tiling(1, 7, 2, 1, 3, True, True, True), 0.05),
    (CONVOLUTION, Tiling(2, 2, 7, 1, 3, True, True, True), 0.05),
    (CONVOLUTION, Tiling(4, 7, 4, 1, 1, True, True, False), 0.05),
    (STRIDED, None, 0.10),
    (STRIDED, Tiling(8, 1, 4, 4, 1, False, True, True), 0.10),
    # Stores short rows, whose responses it waits for.
    (STRIDED, Tiling(8, 2, 1, 4, 1, True, True, True, 4, 8), 0.20),
    (BY_SHIFT, None, 0.15),
    (BY_SHIFT, Tiling(2, 3, 4, 6, 1, True, False, False), 0.15),
    (Dense(1, 32, 12, PerChannelScale()), None, 0.10),
    (Dense(12, 16, 8, PerChannelScale()), None, 0.05),
    (Dense(12, 16, 8, SHIFT), Tiling(4, 4, inputs=8, ahead=True), 0.10),
]


@pytest.fixture(scope="module")
def measured() -> list[tuple[float, float]]:
    """Estimated and measured cycles of each case."""
    env, found = Environment(TINY), list[tuple[float, float]]()
    for workload, knobs, _ in CASES:
        alone = replace(workload, is_first=True)
        chosen = knobs or choose(alone, TINY).best
        if isinstance(workload, Conv2d):
            function = conv2d(workload, env, chosen)
        else:
            function = dense(workload, env, chosen)
        estimate = estimated(alone, TINY, chosen)
        found.append((estimate.cycles, cycles_of(function)))
    return found


def cycles_of(function: Function) -> int:
    runtime = Runtime(open_device("rtl", function.config, 1 << 20, dram="ddr"))
    buffers = [runtime.allocate(function.nbytes(i), a.name) for i, a in enumerate(function.args)]
    function.run_on(runtime, *buffers)
    cycles = runtime.synchronize().cycles
    assert cycles is not None
    return cycles


@pytest.mark.parametrize("number", range(len(CASES)))
def test_estimates_are_near_what_is_measured(
    number: int, measured: list[tuple[float, float]]
) -> None:
    predicted, cycles = measured[number]
    assert predicted == pytest.approx(cycles, rel=CASES[number][2])


def test_an_estimate_of_a_part_is_no_less_than_its_limit() -> None:
    """Otherwise it would pass for the best. Here the rest stalls less than the part."""
    config = PRESETS["ecp5-25f"]
    pooled = replace(
        CONVOLUTION, outputs=8, height=8, width=8, pooling=Pooling((4, 4), (2, 2), (2, 2))
    )
    tiling = Tiling(4, 2, 4, 4, 3, weights_outside=False, ahead=True)
    assert estimated(pooled, config, tiling).cycles > 21_000
    for limit in range(20_200, 20_400, 4):
        assert estimated(pooled, config, tiling, limit).cycles >= limit


def test_estimates_rank_schedules_of_one_operator_as_they_are_measured(
    measured: list[tuple[float, float]],
) -> None:
    for workload in (CONVOLUTION, STRIDED, BY_SHIFT):
        of_one = [pair for pair, case in zip(measured, CASES, strict=True) if case[0] == workload]
        assert len(of_one) > 1
        for predicted, cycles in of_one:
            for other_predicted, other_cycles in of_one:
                if cycles < 0.97 * other_cycles:
                    assert predicted < other_predicted


def test_a_choice_is_explained_by_what_was_considered_and_what_bounds_it() -> None:
    env = Environment(TINY)
    lines = str(vta.explain(CONVOLUTION, env)).splitlines()
    assert " ".join(lines[0].split()) == "cycles gemm alu bus fill waits drain limit knobs"
    chosen = lines[1].split()
    assert [chosen[1], chosen[7]] == ["28,224", "gemm"]
    assert "in_turn" in chosen
    assert "others fit, the best of them about" in lines[-1]
    assert "rows=1" in str(vta.explain(Dense(1, 32, 12, SHIFT), env))
