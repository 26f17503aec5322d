"""The loader: data and padding that it writes, bus utilization, and bus errors."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.dma.loader import Loader
from amaranth_vta.hw.isa import (
    Load,
    Memory,
    Padding,
    SetPadding,
    filled_by,
    limited_as,
    padding_of,
    set_padding,
)
from amaranth_vta.hw.scratchpad import geometry
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
# The same with padding values, for scalars of these widths.
CONFIGS |= {
    f"{name}, pad_value": replace(CONFIGS[name], pad_value=1) for name in ("bus256", "acc16")
} | {"tiny-extended": PRESETS["tiny-extended"]}
# Weights of 4 bits: two or eight elements per beat, two gathered beats, and 8 lanes of these.
CONFIGS |= {
    f"{name}, wgt_4bit": replace(base, wgt_4bit=1, log_wgt_buff_size=size, **changes)
    for name, base, size, changes in (
        ("one beat", PRESETS["tiny"], 10, {"log_bus_width": 7}),
        ("elements in a beat", PRESETS["tiny"], 10, {"log_bus_width": 9}),
        ("gathered", PRESETS["batch2"], 12, {}),
        ("lanes", PRESETS["pynq"], 12, {}),
    )
}
LOAD, COMPUTE = (Memory.INP, Memory.WGT), (Memory.UOP, Memory.ACC, Memory.ACC_8BIT)
DRAM_BYTES = 1 << 16


def bases_of(config: Config) -> dict[str, int]:
    """A different base for each memory, with minimal alignment."""
    return {
        name: 4096 + number * max(64, getattr(config, name).element_bytes)
        for number, name in enumerate(("uop", "inp", "wgt", "acc", "out"))
    }


def random_load(generator: random.Random, config: Config, memory: Memory) -> Load:
    depth = config.memory(memory).depth
    while True:
        x_size = generator.choice([0, 1, 1, 2, 3, 5, 9, 17])
        instruction = Load(
            memory=memory,
            sram_base=generator.randrange(depth),
            dram_base=generator.randrange(40),
            y_size=generator.choice([0, 1, 1, 2, 3, 4]),
            x_size=x_size,
            x_stride=generator.choice([0, 1, x_size, x_size, x_size + 1, 23]),
            y_pad_0=generator.choice([0, 0, 0, 1, 2]),
            y_pad_1=generator.choice([0, 0, 0, 1, 2]),
            x_pad_0=generator.choice([0, 0, 0, 1, 2, 5]),
            x_pad_1=generator.choice([0, 0, 0, 1, 2, 5]),
        )
        if instruction.sram_base + instruction.elements <= depth:
            return instruction


def address_of(config: Config, memory: Memory, element: int) -> int:
    base = limited_as(memory).name.lower()
    return bases_of(config)[base] + element * config.memory(memory).element_bytes


def padding_element(config: Config, memory: Memory, value: int) -> int:
    """An element of the scratchpad of ``memory``, each scalar of which is ``value``."""
    tile = config.memory(filled_by(memory))
    scalar = value & (1 << tile.scalar_width) - 1
    return sum(scalar << n * tile.scalar_width for n in range(tile.rows * tile.columns))


def apply_load(
    config: Config,
    dram: np.ndarray,
    scratchpad: list[int | None],
    load: Load,
    padding: int = 0,
) -> None:
    """The effect of a LOAD by the instruction set's definition, element by element."""
    place = load.sram_base
    if load.x_size == 0:
        return
    padding = padding_element(config, Memory(load.memory), padding)
    for row in range(-load.y_pad_0, load.y_size + load.y_pad_1):
        for column in range(-load.x_pad_0, load.x_size + load.x_pad_1):
            value = padding
            if 0 <= row < load.y_size and 0 <= column < load.x_size:
                memory = Memory(load.memory)
                size = config.memory(memory).element_bytes
                at = address_of(config, memory, load.dram_base + row * load.x_stride + column)
                value = int.from_bytes(bytes(dram[at : at + size]), "little")
                if filled_by(memory) is not memory:
                    value = widened(config, memory, value)
            scratchpad[place] = value
            place += 1


def widened(config: Config, memory: Memory, value: int) -> int:
    tile = config.memory(memory)
    narrow, wide = tile.scalar_width, config.memory(filled_by(memory)).scalar_width
    result = 0
    for scalar in range(tile.rows * tile.columns):
        item = value >> scalar * narrow & (1 << narrow) - 1
        item -= (item >> narrow - 1) << narrow
        result |= (item & (1 << wide) - 1) << scalar * wide
    return result


class Recorder:
    """Follows the contents of scratchpads from the loader's write ports."""

    def __init__(self, config: Config, dut: Loader, memories: Sequence[Memory]) -> None:
        self.dut = dut
        self.contents: dict[Memory, list[int | None]] = {
            memory: [None] * config.memory(memory).depth for memory in memories
        }
        self.bits = {memory: config.memory(memory).element_bits for memory in memories}
        self.lanes = {memory: geometry(config, memory).lanes for memory in memories}
        self.snapshots: list[dict[Memory, list[int | None]]] = []
        self.errors = 0
        self.writes = 0

    async def record(self, ctx: Any, done_count: int, hold: Pauses, within: int = 40_000) -> int:
        ports = [getattr(self.dut, memory.name.lower()) for memory in self.contents]
        signals = [s for p in ports for s in (p.enable, p.lanes, p.index, p.data)]
        cycles = aiter(ctx.tick().sample(self.dut.done, self.dut.error, *signals))
        for cycle in range(within):
            ctx.set(self.dut.hold, hold())
            _, _, done, error, *values = await anext(cycles)
            for number, memory in enumerate(self.contents):
                self._write(memory, *values[4 * number : 4 * number + 4])
            if done:
                # As visible in the next cycle.
                self.snapshots.append({m: list(c) for m, c in self.contents.items()})
                self.errors += error
            if len(self.snapshots) == done_count:
                return cycle
        raise TimeoutError(f"{len(self.snapshots)} of {done_count} transfers are done")

    def _write(self, memory: Memory, enable: int, lanes: int, index: int, data: Any) -> None:
        lane_bits = self.bits[memory] // self.lanes[memory]
        self.writes += enable != 0
        for j in range(len(data)):
            if not enable >> j & 1:
                continue
            assert 0 <= index + j < len(self.contents[memory])
            value = self.contents[memory][index + j] or 0
            for lane in range(self.lanes[memory]):
                if lanes >> lane & 1:
                    mask = ((1 << lane_bits) - 1) << lane * lane_bits
                    value = value & ~mask | data[j] & mask
            self.contents[memory][index + j] = value


def run_loader(
    config: Config,
    memories: Sequence[Memory],
    loads: Sequence[Load | SetPadding],
    memory: BurstMemory,
    *,
    done: int | None = None,
    hold: Pauses = never,
    pause: Pauses = never,
) -> tuple[Recorder, int, list[int]]:
    scratchpads = [item for item in memories if filled_by(item) is item]
    dut = shared(Loader, config, tuple(scratchpads))
    recorder = Recorder(config, dut, scratchpads)
    cycles = []
    idle = []

    async def run(ctx: Any) -> None:
        ctx.set(dut.bases, bases_of(config))
        cycles.append(await recorder.record(ctx, len(loads) if done is None else done, hold))
        for _ in range(1000):
            await ctx.tick()
            idle.append(ctx.get(dut.idle))

    async def serve(ctx: Any) -> None:
        await memory.serve_reads(ctx, dut.read)

    async def put(ctx: Any) -> None:
        await put_all(ctx, dut.command, [transfer_command(load) for load in loads], pause)

    simulate(dut, run, background=(serve, put))
    return recorder, cycles[0], idle


@pytest.mark.parametrize("probability", [0, 0.4])
@pytest.mark.parametrize("memories", [LOAD, COMPUTE], ids=["load", "compute"])
@pytest.mark.parametrize("name", CONFIGS)
def test_loader_fills_scratchpads_as_the_instruction_set_says(
    name: str, memories: tuple[Memory, ...], probability: float
) -> None:
    config = CONFIGS[name]
    if config.wgt_4bit and memories is LOAD:
        memories = (*LOAD, Memory.WGT_4BIT)
    generator = random.Random(f"{name} {memories}")
    dram = np.random.default_rng(1).integers(0, 256, DRAM_BYTES, dtype=np.uint8)
    padding = Padding.LOAD if Memory.WGT in memories else Padding.COMPUTE
    loads: list[Load | SetPadding] = []
    for _ in range(60):
        loads.append(random_load(generator, config, generator.choice(memories)))
        if config.pad_value and generator.random() < 0.4:
            loads.append(set_padding(padding, generator.getrandbits(32)))
    memory = BurstMemory(dram, pause=pauses(probability, 1))
    recorder, _, idle = run_loader(
        config,
        memories,
        loads,
        memory,
        hold=pauses(probability / 2, 2),
        pause=pauses(probability, 3),
    )
    expected: dict[Memory, list[int | None]] = {
        item: [None] * config.memory(item).depth for item in memories
    }
    value = 0
    for number, load in enumerate(loads):
        if isinstance(load, SetPadding):
            value = load.value
        else:
            memory_of = Memory(load.memory)
            target = filled_by(memory_of)
            pads_with = 0 if padding_of(memory_of) is None else value
            apply_load(config, dram, expected[target], load, pads_with)
        for item, contents in recorder.snapshots[number].items():
            assert contents == expected[item], (number, load)
    assert recorder.errors == 0
    assert idle[-1] == 1


def test_loader_pads_all_four_sides() -> None:
    config = PRESETS["tiny"]
    dram = np.full(DRAM_BYTES, 0xFF, dtype=np.uint8)
    load = Load(
        memory=Memory.INP,
        y_size=2,
        x_size=3,
        x_stride=3,
        y_pad_0=1,
        y_pad_1=1,
        x_pad_0=1,
        x_pad_1=2,
    )
    recorder, _, _ = run_loader(config, LOAD, [load], BurstMemory(dram))
    image = [value and 1 for value in recorder.contents[Memory.INP][: load.elements]]
    row, empty = [0, 1, 1, 1, 0, 0], [0] * 6
    assert image == [*empty, *row, *row, *empty]


def test_rows_are_cut_at_four_kilobytes_and_go_in_long_bursts() -> None:
    config = PRESETS["pynq"]
    dram = np.zeros(1 << 20, dtype=np.uint8)
    load = Load(memory=Memory.INP, dram_base=250, y_size=4, x_size=300, x_stride=300)
    memory = BurstMemory(dram)
    run_loader(config, LOAD, [load], memory)
    base = address_of(config, Memory.INP, 250)
    assert memory.bursts[0] == (base, (6144 - base % 4096 - 4096 * (base // 4096 - 1)) // 8 % 256)
    assert [beats for _, beats in memory.bursts[1:-1]] == [256] * (len(memory.bursts) - 2)
    assert sum(beats for _, beats in memory.bursts) == 4 * 300 * 2


@pytest.mark.parametrize("latency", [4, 48])
def test_loads_keep_the_bus_busy(latency: int) -> None:
    """Consecutive transfers of rows of eight words, padded on both sides."""
    config = PRESETS["pynq"]
    dram = np.zeros(1 << 20, dtype=np.uint8)
    loads = [
        Load(
            memory=memory,
            dram_base=8 * n,
            y_size=12,
            x_size=x,
            x_stride=50,
            x_pad_0=pad,
            x_pad_1=pad,
        )
        for n in range(10)
        for memory, x, pad in ((Memory.INP, 4, 1), (Memory.WGT, 1, 0))
    ]
    memory = BurstMemory(dram, latency=latency, outstanding=16)
    _, cycles, _ = run_loader(config, LOAD, loads, memory)
    assert memory.beats == 10 * 12 * (8 + 32)
    assert memory.beats / (cycles - latency) > 0.95


@pytest.mark.parametrize("probability", [0, 0.3])
@pytest.mark.parametrize("beat", [0, 1])
def test_loader_stops_at_a_bus_error_and_drains(beat: int, probability: float) -> None:
    """The error is in the first beat of a burst of two beats, or in the last."""
    config = PRESETS["tiny"]
    dram = np.random.default_rng(1).integers(0, 256, DRAM_BYTES, dtype=np.uint8)
    loads = [
        Load(memory=Memory.INP, sram_base=8 * n, dram_base=100 * n, y_size=2, x_size=3, x_stride=9)
        for n in range(6)
    ]
    bad = address_of(config, Memory.INP, 300 + 9 + beat)
    memory = BurstMemory(dram, bad=[bad], pause=pauses(probability))
    recorder, _, idle = run_loader(config, LOAD, loads, memory, done=4)
    assert recorder.errors == 1
    expected: list[int | None] = [None] * config.inp.depth
    for load in loads[:3]:
        apply_load(config, dram, expected, load)
    assert recorder.contents[Memory.INP][:24] == expected[:24]
    assert recorder.contents[Memory.INP][32:] == expected[32:]
    assert idle[-1] == 1
