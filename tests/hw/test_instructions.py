"""Instruction queues: nothing is lost, and each module gets its instructions in order."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.instructions import InstructionQueues
from amaranth_vta.hw.isa import Load, Memory, instruction_set
from amaranth_vta.hw.microarchitecture import Microarchitecture, Storage
from amaranth_vta.hw.timing import latencies
from amaranth_vta.sim.testbench.amaranth import pauses, shared, simulate

NAMES = ("load", "compute", "store")


@pytest.mark.parametrize("config", ["tiny", "pynq"])
@pytest.mark.parametrize("stalls", [0, 0.5, 0.95])
@pytest.mark.parametrize("gaps", [0, 0.6])
def test_each_module_gets_its_instructions_in_order(
    gaps: float, stalls: float, config: str
) -> None:
    generator = random.Random(3)
    targets = [generator.choice(generator.choice([NAMES, NAMES[:1]])) for _ in range(250)]
    dut = shared(InstructionQueues, PRESETS[config])
    taken: dict[str, list[int]] = {name: [] for name in NAMES}

    async def hand_over(ctx: Any) -> None:
        pause = pauses(gaps, 1)
        for index, target in enumerate(targets):
            while pause():
                await ctx.tick()
            for name in NAMES:
                ctx.set(getattr(dut, name).payload.index, index)
            ctx.set(getattr(dut, target).valid, 1)
            await ctx.tick().until(getattr(dut, target).ready)
            ctx.set(getattr(dut, target).valid, 0)

    def take(name: str, seed: int) -> Any:
        out, retire = getattr(dut, f"{name}_out"), getattr(dut, f"{name}_retire")
        pause = pauses(stalls, seed)

        async def process(ctx: Any) -> None:
            for _ in range(20_000):
                ctx.set(out.ready, not pause())
                _, _, valid, ready, payload = await ctx.tick().sample(
                    out.valid, out.ready, out.payload
                )
                ctx.set(retire, valid & ready)
                if valid and ready:
                    taken[name].append(payload.entry.index)
                elif len(taken[name]) == targets.count(name):
                    break

        return process

    simulate(dut, hand_over, *(take(name, seed) for seed, name in enumerate(NAMES)))
    assert taken == {
        name: [index for index, target in enumerate(targets) if target == name] for name in NAMES
    }


@pytest.mark.parametrize("storage", Storage)
@pytest.mark.parametrize("config", ["tiny", "pynq"])
def test_instructions_can_be_taken_when_the_latencies_say(config: str, storage: Storage) -> None:
    choices = replace(Microarchitecture.of(PRESETS[config]), instruction_queues=storage)
    dut = shared(InstructionQueues, PRESETS[config], choices)
    known = latencies(PRESETS[config], choices)
    taken: list[int] = []

    async def run(ctx: Any) -> None:
        ctx.set(dut.compute_out.ready, 1)
        for cycle in range(30):
            ctx.set(dut.compute.valid, cycle < 3)
            # The payload is the same at all three ports.
            ctx.set(dut.load.payload.index, cycle)
            if ctx.get(dut.compute_out.valid):
                assert ctx.get(dut.compute_out.payload.entry.index) == len(taken)
                taken.append(cycle)
            await ctx.tick()

    simulate(dut, run)
    # The decoder, which may have a register, follows the queue.
    first = known.hand_over_to_issue - choices.decode_register
    interval = known.issue_to_issue
    assert taken == [first + interval * number for number in range(3)]


@pytest.mark.parametrize("config", ["tiny", "pynq"])
@pytest.mark.parametrize(("limit", "outside"), [(0, False), (8, False), (7, True)])
def test_instructions_are_checked_against_the_limits(
    limit: int, outside: bool, config: str
) -> None:
    dut = shared(InstructionQueues, PRESETS[config])
    load = Load(memory=Memory.INP, sram_base=0, dram_base=4, y_size=2, x_size=2, x_stride=2)

    async def run(ctx: Any) -> None:
        ctx.set(dut.limits.inp, limit)
        ctx.set(dut.load.payload.bits, instruction_set(PRESETS[config]).encode(load))
        ctx.set(dut.load.valid, 1)
        await ctx.tick()
        ctx.set(dut.load.valid, 0)
        await ctx.tick().until(dut.load_out.valid)
        assert ctx.get(dut.load_out.payload.out_of_bounds) == outside

    simulate(dut, run)
