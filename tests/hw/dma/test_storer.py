"""The storer: data that it writes, bus utilization, and bus errors."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.dma.storer import Storer
from amaranth_vta.hw.isa import Store
from amaranth_vta.sim.testbench.amaranth import (
    BurstMemory,
    Pauses,
    never,
    pauses,
    put_all,
    shared,
    simulate,
    transfer_command,
)
from tests.support.corners import CORNERS

CONFIGS = {
    "tiny": PRESETS["tiny"],
    "batch2": PRESETS["batch2"],
    **{name: CORNERS[name] for name in ("bus512", "bus256", "acc16")},
}
DRAM_BYTES = 1 << 16


def base_of(config: Config) -> int:
    """A base with minimal alignment."""
    return 4096 + max(64, config.out.element_bytes)


def random_store(generator: random.Random, config: Config) -> Store:
    while True:
        x_size = generator.choice([0, 1, 1, 2, 3, 5, 9, 17])
        store = Store(
            sram_base=generator.randrange(config.acc.depth),
            dram_base=generator.randrange(400),
            y_size=generator.choice([0, 1, 1, 2, 3, 4]),
            x_size=x_size,
            x_stride=generator.choice([0, 1, x_size, x_size, x_size + 1, 23]),
        )
        if store.sram_base + store.elements <= config.acc.depth:
            return store


def run_storer(
    config: Config,
    stores: Sequence[Store],
    memory: BurstMemory,
    contents: list[int],
    *,
    done: int | None = None,
    pause: Pauses = never,
) -> tuple[list[int], int, list[int]]:
    """Run STOREs; return the errors, the cycle of the last transfer, and `idle` after it."""
    dut = shared(Storer, config)
    errors: list[int] = []
    idle: list[int] = []
    cycles = []

    async def run(ctx: Any) -> None:
        ctx.set(dut.base, base_of(config))
        ends = ctx.tick().sample(dut.done, dut.error)
        for cycle in range(40_000):
            _, _, done_now, error = await ends
            if done_now:
                errors.append(error)
                if len(errors) == (len(stores) if done is None else done):
                    cycles.append(cycle)
                    break
        for _ in range(1000):
            await ctx.tick()
            idle.append(ctx.get(dut.idle))

    async def scratchpad(ctx: Any) -> None:
        port = dut.scratchpad
        async for _, _, enable, index in ctx.tick().sample(port.enable, port.index):
            if enable:
                places = range(index, index + len(port.data))
                ctx.set(port.data, [contents[p] if 0 <= p < len(contents) else 7 for p in places])

    async def serve(ctx: Any) -> None:
        await memory.serve_writes(ctx, dut.write)

    async def put(ctx: Any) -> None:
        await put_all(ctx, dut.command, [transfer_command(store) for store in stores], pause)

    simulate(dut, run, background=(serve, put, scratchpad))
    return errors, cycles[0], idle


def apply_store(config: Config, dram: np.ndarray, contents: list[int], store: Store) -> None:
    size = config.out.element_bytes
    place = store.sram_base
    for row in range(store.y_size):
        for column in range(store.x_size):
            at = base_of(config) + (store.dram_base + row * store.x_stride + column) * size
            dram[at : at + size] = list(contents[place].to_bytes(size, "little"))
            place += 1


@pytest.mark.parametrize("probability", [0, 0.4])
@pytest.mark.parametrize("name", CONFIGS)
def test_storer_writes_rows_in_order(name: str, probability: float) -> None:
    config = CONFIGS[name]
    generator = random.Random(name)
    dram = np.random.default_rng(1).integers(0, 256, DRAM_BYTES, dtype=np.uint8)
    expected = dram.copy()
    contents = [generator.getrandbits(config.out.element_bits) for _ in range(config.acc.depth)]
    stores = [random_store(generator, config) for _ in range(60)]
    for store in stores:
        apply_store(config, expected, contents, store)
    memory = BurstMemory(dram, pause=pauses(probability, 1))
    errors, _, idle = run_storer(config, stores, memory, contents, pause=pauses(probability, 2))
    assert errors == [0] * len(stores)
    assert np.array_equal(dram, expected)
    assert idle[-1] == 1


@pytest.mark.parametrize("latency", [4, 48])
def test_stores_keep_the_bus_busy(latency: int) -> None:
    config = PRESETS["pynq"]
    memory = BurstMemory(np.zeros(1 << 20, dtype=np.uint8), latency=latency)
    stores = [
        Store(sram_base=100 * n, dram_base=500 * n, y_size=7, x_size=14, x_stride=56)
        for n in range(10)
    ]
    _, cycles, _ = run_storer(config, stores, memory, [0] * config.acc.depth)
    assert memory.beats == 10 * 7 * 14 * 2
    assert memory.beats / (cycles - latency) > 0.95


def test_storer_stops_at_a_bus_error_and_drains() -> None:
    config = PRESETS["tiny"]
    dram = np.zeros(DRAM_BYTES, dtype=np.uint8)
    stores = [
        Store(sram_base=8 * n, dram_base=100 * n, y_size=2, x_size=3, x_stride=9) for n in range(6)
    ]
    memory = BurstMemory(dram, bad=[base_of(config) + 310 * config.out.element_bytes])
    errors, _, idle = run_storer(config, stores, memory, [1] * config.acc.depth, done=4)
    assert errors == [0, 0, 0, 1]
    assert idle[-1] == 1


@pytest.mark.parametrize("probability", [0, 0.4])
@pytest.mark.parametrize("name", ["tiny", "bus512"])
def test_what_is_announced_is_not_written_after_a_bus_error(name: str, probability: float) -> None:
    config = CONFIGS[name]
    dram = np.zeros(DRAM_BYTES, dtype=np.uint8)
    # Long bursts, so that most of their words arrive after the first burst is refused.
    count = 4096 // config.out.element_bytes // 8
    count = min(count, config.acc.depth)
    stores = [Store(dram_base=count * n, x_size=count) for n in range(6)]
    memory = BurstMemory(dram, bad=[base_of(config)], latency=8, pause=pauses(probability))
    ones = [(1 << config.out.element_bits) - 1] * config.acc.depth
    errors, _, idle = run_storer(config, stores, memory, ones, done=1)
    assert errors == [1]
    assert idle[-1] == 1
    assert memory.refused > 4
    last = dram[base_of(config) + 4 * count * config.out.element_bytes :]
    assert not last.any()
