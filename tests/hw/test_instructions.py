"""Instruction queues: nothing is lost, and each module gets its instructions in order."""

from __future__ import annotations

import random
from typing import Any

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.instructions import InstructionQueues
from amaranth_vta.sim.testbench.amaranth import pauses, simulate

NAMES = ("load", "compute", "store")


@pytest.mark.parametrize("stalls", [0, 0.5, 0.95])
@pytest.mark.parametrize("gaps", [0, 0.6])
def test_each_module_gets_its_instructions_in_order(gaps: float, stalls: float) -> None:
    generator = random.Random(3)
    targets = [generator.choice(generator.choice([NAMES, NAMES[:1]])) for _ in range(250)]
    dut = InstructionQueues(PRESETS["tiny"])
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
