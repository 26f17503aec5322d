"""The extent checker against the fields of random instructions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.dma.extent import ExtentChecker
from amaranth_vta.hw.isa import Load, Memory, instruction_set
from amaranth_vta.sim.testbench.amaranth import pauses, put_all, shared, simulate


def random_load(generator: random.Random, config: Config) -> Load:
    """A LOAD that often ends at the depth of its memory or a little beyond, sometimes far beyond,
    or is empty; or one row or column that fills the memory."""
    memory = generator.choice([Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC])
    depth = config.memory(memory).depth
    if generator.random() < 0.1:
        sides = generator.sample((1, depth), 2)
        return Load(memory=memory, x_size=sides[0], y_size=sides[1])
    largest = generator.choice([1, 3, 12, 40, depth, 0xFFFF])
    return Load(
        memory=memory,
        sram_base=generator.choice([0, 5, depth - 28, depth - 1, depth, 0xFFFF]),
        y_size=generator.randint(0, largest),
        x_size=generator.randint(0, largest),
        **{name: generator.choice([0, 0, 1, 15]) for name in ("y_pad_0", "y_pad_1", "x_pad_0")},
    )


@pytest.mark.parametrize(("config", "gaps"), [("tiny", 0), ("tiny", 0.4), ("pynq", 0)])
def test_elements_are_counted_and_compared_with_the_depth(config: str, gaps: float) -> None:
    machine = PRESETS[config]
    generator = random.Random(4)
    loads = [random_load(generator, machine) for _ in range(200)]
    encode = instruction_set(machine).encode
    entries = [{"bits": encode(load), "index": n} for n, load in enumerate(loads)]
    dut = shared(ExtentChecker, machine)
    checked: list[Any] = []

    async def put(ctx: Any) -> None:
        await put_all(ctx, dut.i, entries, pauses(gaps, 1))

    async def get(ctx: Any) -> None:
        while len(checked) < len(loads):
            _, _, valid, payload = await ctx.tick().sample(dut.o.valid, dut.o.payload)
            if valid:
                checked.append(payload)

    simulate(dut, get, background=[put])
    outside = 0
    for n, (load, result) in enumerate(zip(loads, checked, strict=True)):
        depth = machine.memory(Memory(load.memory)).depth
        out_of_range = load.elements > 0 and load.sram_base + load.elements > depth
        assert result.entry.index == n
        assert result.out_of_range == out_of_range, load
        if not out_of_range:
            assert result.elements == load.elements
            if load.elements:
                before = load.y_pad_0 * load.row_elements + load.x_pad_0
                assert result.first == load.sram_base + before
        outside += out_of_range
    assert 0 < outside < len(loads)
