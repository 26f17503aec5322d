from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.datapath.dot_products import DotProducts, SingleDotProducts
from amaranth_vta.hw.datapath.gemm import GemmUnit
from amaranth_vta.hw.tiles import TileMemory
from amaranth_vta.sim.testbench.amaranth import pauses, run_unit, shared, simulate
from tests.support.corners import CORNERS

DEPTHWISE = replace(PRESETS["tiny"], depthwise=1)
CONFIGS = {
    "tiny": PRESETS["tiny"],
    "batch2": PRESETS["batch2"],
    **{name: CORNERS[name] for name in ("int4 4x8", "acc16")},
}


def random_tiles(rng: np.random.Generator, memory: TileMemory, count: int) -> np.ndarray:
    """Tiles of random scalars, including extreme values; the first tile has only the minimum."""
    low, high = -(1 << memory.scalar_width - 1), (1 << memory.scalar_width - 1) - 1
    tiles = rng.integers(low, high, (count, memory.rows, memory.columns), endpoint=True)
    tiles[rng.random(tiles.shape) < 0.2] = low
    tiles[0] = low
    return tiles


def sums_of(ctx: Any, dut: DotProducts) -> np.ndarray:
    """Current value of the sums of ``dut``."""
    sums, carries = (
        np.array([list(row) for row in ctx.get(port)]) for port in (dut.sums, dut.carries)
    )
    return sums + carries


@pytest.mark.parametrize("kind", [DotProducts, SingleDotProducts])
@pytest.mark.parametrize("name", CONFIGS)
def test_dot_products_are_exact_at_one_pair_of_tiles_per_cycle(
    name: str, kind: type[DotProducts]
) -> None:
    config = CONFIGS[name]
    rng = np.random.default_rng(1)
    inputs, weights = (random_tiles(rng, memory, 20) for memory in (config.inp, config.wgt))
    dut = shared(kind, config)
    got = []

    async def check(ctx: Any) -> None:
        for cycle in range(20 + dut.latency):
            if cycle < 20:
                ctx.set(dut.inp, inputs[cycle].tolist())
                ctx.set(dut.wgt, weights[cycle].tolist())
            if cycle >= dut.latency:
                got.append(sums_of(ctx, dut))
            await ctx.tick()

    simulate(dut, check)
    assert np.array_equal(got, inputs @ weights.transpose(0, 2, 1))


def of_taps(config: Config, inputs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Expected sums of DEPTHWISE: ``inputs`` (taps, BATCH, BLOCK), ``weights`` (BLOCK, BLOCK)."""
    sums = np.zeros((config.batch, config.block_out), np.int64)
    for j in range(config.block_out):
        for k in range(config.block_in):
            is_tap = k < 2 * config.taps
            own = (j // 2 * 2 + k % 2) % config.block_in
            lane = inputs[k // 2][:, own] if is_tap else inputs[0][:, k]
            sums[:, j] += lane * weights[j, k]
    return sums


@pytest.mark.parametrize("kind", [DotProducts, SingleDotProducts])
@pytest.mark.parametrize("name", ["batch2", "tiny", "taps 3", "more outputs"])
def test_dot_products_take_several_taps_of_each_channel(name: str, kind: type[DotProducts]) -> None:
    config = replace(DEPTHWISE, log_batch=1) if name == "batch2" else DEPTHWISE
    if name == "more outputs":
        config = replace(config, log_block_out=3)
    if name == "taps 3":
        config = replace(config, log_block_in=3, log_block_out=3, log_inp_buff_size=10)
        assert config.taps == 3
    rng = np.random.default_rng(1)
    tiles = random_tiles(rng, config.inp, 20 * config.taps).reshape(
        20, config.taps, config.batch, config.block_in
    )
    weights = random_tiles(rng, config.wgt, 20)
    tapped = rng.integers(0, 2, 20)
    dut = shared(kind, config)
    got = []

    async def check(ctx: Any) -> None:
        for cycle in range(20 + dut.latency):
            if cycle < 20:
                ctx.set(dut.inp, tiles[cycle, 0].tolist())
                ctx.set(dut.further, tiles[cycle, 1:].tolist())
                ctx.set(dut.tapped, int(tapped[cycle]))
                ctx.set(dut.wgt, weights[cycle].tolist())
            if cycle >= dut.latency:
                got.append(sums_of(ctx, dut))
            await ctx.tick()

    simulate(dut, check)
    want = [
        of_taps(config, inputs, tile) if tap else inputs[0] @ tile.T
        for inputs, tile, tap in zip(tiles, weights, tapped, strict=True)
    ]
    assert np.array_equal(got, want)


def run(config: Config, items: list[dict], gaps: float) -> tuple[np.ndarray, np.ndarray, list]:
    """Actual and expected accumulators after the micro-ops, and the reports of `done`."""
    rng = np.random.default_rng(2)
    inputs = random_tiles(rng, config.inp, config.inp.depth)
    weights = random_tiles(rng, config.wgt, config.wgt.depth)
    accumulators = random_tiles(rng, config.acc, config.acc.depth)
    want = accumulators.copy()
    for item in items:
        if item["error"]:
            break
        if item["enable"]:
            dst, src, wgt = (item["indices"][name] for name in ("dst", "src", "wgt"))
            product = inputs[src] @ weights[wgt].T
            kept = 0 if item["context"]["overwrite"] else want[dst]
            want[dst] = 0 if item["context"]["reset"] else kept + product
            span = 1 << config.acc_width
            want[dst] = (want[dst] + span // 2) % span - span // 2
    reads = {"inp": inputs, "wgt": weights, "acc_read": accumulators}
    dones, _ = run_unit(
        shared(GemmUnit, config), items, reads, {"acc_write": accumulators}, pauses(gaps)
    )
    return accumulators, want, dones


def micro_op(
    dst: int,
    src: int = 0,
    wgt: int = 0,
    *,
    reset: int = 0,
    overwrite: int = 0,
    last: int = 0,
    error: int = 0,
    enable: int = 1,
) -> dict:
    return {
        "indices": {"dst": dst, "src": src, "wgt": wgt},
        "enable": enable,
        "last": last,
        "error": error,
        "context": {"reset": reset, "overwrite": overwrite},
    }


@pytest.mark.parametrize("gaps", [0, 0.5])
@pytest.mark.parametrize("name", CONFIGS)
def test_gemm_unit_accumulates_whatever_depends_on_what(name: str, gaps: float) -> None:
    config = CONFIGS[name]
    rng = np.random.default_rng(3)
    items = [
        micro_op(
            int(rng.integers(3)),  # few accumulators: every distance between dependent micro-ops
            int(rng.integers(config.inp.depth)),
            int(rng.integers(config.wgt.depth)),
            reset=int(rng.random() < 0.1),
            overwrite=int(rng.random() < 0.2),
            last=int(rng.random() < 0.3),
            enable=int(rng.random() < 0.9),
        )
        for _ in range(150)
    ]
    got, want, dones = run(config, items, gaps)
    assert np.array_equal(got, want)
    assert dones == [0] * sum(item["last"] for item in items)


def test_gemm_unit_writes_nothing_from_a_faulty_micro_op_on() -> None:
    items = [
        micro_op(1, last=1),
        micro_op(2),
        micro_op(3, error=1),
        micro_op(1),
        micro_op(2, last=1),
    ]
    got, want, dones = run(PRESETS["tiny"], items, 0)
    assert np.array_equal(got, want)
    assert dones == [0, 1]


def test_gemm_unit_reads_no_tiles_in_a_reset() -> None:
    config = PRESETS["tiny"]
    rng = np.random.default_rng(1)
    # Reads of other tiles than the first are out of range.
    reads = {name: random_tiles(rng, getattr(config, name), 1) for name in ("inp", "wgt")}
    sums = random_tiles(rng, config.acc, 4)
    items = [micro_op(1), micro_op(2, src=1, wgt=1, reset=1), micro_op(2, last=1)]
    unit = shared(GemmUnit, config)
    dones, _ = run_unit(unit, items, {**reads, "acc_read": sums}, {"acc_write": sums}, pauses(0))
    assert dones == [0]
    assert np.array_equal(sums[2], reads["inp"][0] @ reads["wgt"][0].T)
