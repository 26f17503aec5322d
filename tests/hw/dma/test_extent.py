"""The extent checker against the fields of random instructions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.dma.extent import ExtentChecker
from amaranth_vta.hw.isa import Load, Memory, instruction_set
from amaranth_vta.sim.testbench.amaranth import get_all, pauses, put_all, simulate

TINY = PRESETS["tiny"]
MEMORIES = (Memory.INP, Memory.WGT)


def random_load(generator: random.Random) -> Load:
    """Often at the depth of its memory or a little beyond; sometimes far beyond, or empty."""
    largest = generator.choice([1, 3, 12, 40, 0xFFFF])
    return Load(
        memory=generator.choice(MEMORIES),
        sram_base=generator.choice([0, 5, 100, 127, 128, 0xFFFF]),
        y_size=generator.randint(0, largest),
        x_size=generator.randint(0, largest),
        **{name: generator.choice([0, 0, 1, 15]) for name in ("y_pad_0", "y_pad_1", "x_pad_0")},
    )


@pytest.mark.parametrize(("gaps", "stalls"), [(0, 0), (0.4, 0), (0, 0.4)])
def test_elements_are_counted_and_compared_with_the_depth(gaps: float, stalls: float) -> None:
    generator = random.Random(4)
    loads = [random_load(generator) for _ in range(200)]
    encode = instruction_set(TINY).encode
    entries = [{"bits": encode(load), "index": n} for n, load in enumerate(loads)]
    dut = ExtentChecker(TINY, MEMORIES)
    checked: list[Any] = []

    async def put(ctx: Any) -> None:
        await put_all(ctx, dut.i, entries, pauses(gaps, 1))

    async def get(ctx: Any) -> None:
        checked.extend(await get_all(ctx, dut.o, len(loads), pauses(stalls, 2)))

    simulate(dut, put, get)
    outside = 0
    for n, (load, result) in enumerate(zip(loads, checked, strict=True)):
        depth = TINY.memory(Memory(load.memory)).depth
        out_of_range = load.elements > 0 and load.sram_base + load.elements > depth
        assert result.entry.index == n
        assert result.out_of_range == out_of_range, load
        if not out_of_range:
            assert result.elements == load.elements
        outside += out_of_range
    assert 0 < outside < len(loads)
