"""The check whether a transfer leaves the bounds of its memory, against the elements that it
accesses.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.dma.bounds import BoundsChecker
from amaranth_vta.hw.isa import (
    LIMITED,
    Forward,
    Load,
    Memory,
    Store,
    forward_base,
    instruction_set,
    limited_as,
    per_limited,
    transferred_memories,
)
from amaranth_vta.sim.testbench.amaranth import shared, simulate


def random_transfer(generator: random.Random, config: Config) -> Load | Store:
    memory = generator.choice(transferred_memories(config.extensions))
    rows = generator.choice([0, 1, 1, 2, 7, config.acc.depth])
    fields = {
        "dram_base": generator.choice([0, 1, 250, 999, 1 << 23, 1 << 31, (1 << 32) - 1]),
        "x_size": generator.choice([0, 1, 1, 5, 0xFFFF]),
        "y_size": rows,
        "x_stride": generator.choice([0, 1, 300, 0xFFFF]),
    }
    return Store(**fields) if memory is Memory.OUT else Load(memory=memory, **fields)


@pytest.mark.parametrize("log_dram_size", [12, 46])
@pytest.mark.parametrize("name", ["tiny", "pynq"])
def test_what_is_forwarded_is_outside_if_it_is_read_past_the_depth(
    name: str, log_dram_size: int
) -> None:
    config = replace(PRESETS[name], log_dram_size=log_dram_size, forward=1)
    generator = random.Random(name)
    dut = shared(BoundsChecker, config, max(config.memory(memory).depth for memory in Memory))
    outcomes = []

    async def check(ctx: Any) -> None:
        depth = config.acc.depth
        for _ in range(500):
            columns, rows = generator.choice([0, 1, 5]), generator.choice([0, 1, 2, 7])
            stride = generator.choice([0, 1, columns, depth // 8, 0xFFFF])
            reach = max(rows - 1, 0) * stride + columns
            near = depth - reach + generator.choice([-1, 0, 1])
            first = generator.choice([0, depth - 1, 0xFFFF, *[min(max(near, 0), 0xFFFF)] * 3])
            forward = Forward(
                dram_base=forward_base(first, generator.randint(-9, 9)),
                x_size=columns,
                y_size=rows,
                x_stride=stride,
            )
            # Limits in DRAM.
            limits = {item.name.lower(): generator.choice([0, 1, 1 << 20]) for item in LIMITED}
            ctx.set(dut.bits, instruction_set(config).encode(forward))
            ctx.set(dut.limits, limits)
            ctx.set(dut.valid, 1)
            await ctx.tick()
            ctx.set(dut.valid, 0)
            await ctx.tick()
            outside = columns > 0 and rows > 0 and first + reach > depth
            assert ctx.get(dut.outside) == outside, forward
            outcomes.append(outside)

    simulate(dut, check)
    assert 100 < sum(outcomes) < 400


@pytest.mark.parametrize("log_dram_size", [12, 24, 33, 46])
@pytest.mark.parametrize("name", ["tiny", "pynq"])
@pytest.mark.parametrize("wgt_4bit", [0, 1])
def test_a_transfer_is_outside_if_it_accesses_the_element_at_its_limit(
    wgt_4bit: int, name: str, log_dram_size: int
) -> None:
    config = replace(PRESETS[name], log_dram_size=log_dram_size, wgt_4bit=wgt_4bit)
    generator = random.Random(name)
    dut = shared(BoundsChecker, config, max(config.memory(memory).depth for memory in Memory))
    outcomes = set()

    async def check(ctx: Any) -> None:
        for _ in range(500):
            transfer = random_transfer(generator, config)
            of = limited_as(Memory(transfer.memory))
            rows = [transfer.dram_base + y * transfer.x_stride for y in range(transfer.y_size)]
            last = max((row + transfer.x_size - 1 for row in rows if transfer.x_size), default=None)
            # In elements of the limit.
            end = (last or 0) // per_limited(Memory(transfer.memory))
            near = end + generator.choice([-4096, -1, 0, 0, 1, 1, 4096])
            limits = {item: generator.choice([0, 1, 1 << 20]) for item in LIMITED}
            most = config.dram_bytes // config.memory(Memory(transfer.memory)).element_bytes
            limits[of] = generator.choice([0, 1, most % (1 << 32), *[max(near, 0) % (1 << 32)] * 3])
            ctx.set(dut.bits, instruction_set(config).encode(transfer))
            ctx.set(dut.limits, {item.name.lower(): limit for item, limit in limits.items()})
            ctx.set(dut.valid, 1)
            await ctx.tick()
            ctx.set(dut.valid, 0)
            await ctx.tick()
            limit = limits[of] * per_limited(Memory(transfer.memory))
            outside = last is not None and (0 < limit <= last or last >= most)
            assert ctx.get(dut.outside) == outside, (transfer, limits)
            outcomes.add((transfer.memory, outside))

    simulate(dut, check)
    assert len(outcomes) == 2 * len(transferred_memories(config.extensions))
