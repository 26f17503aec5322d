"""Commands of GEMM and the ALU: each starts exactly once, not too early, and is unrolled
completely."""

from __future__ import annotations

import random
from typing import Any

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.datapath.loops import Loops
from amaranth_vta.sim.testbench.amaranth import pauses, put_all, shared, simulate

UNITS = ("gemm", "alu")


@pytest.mark.parametrize("stalls", [0, 0.5])
@pytest.mark.parametrize("name", ["tiny", "tiny-extended"])
def test_each_command_begins_once_after_those_that_it_waits_for(name: str, stalls: float) -> None:
    """`tiny-extended` has a queue and a sequencer for each unit, `tiny` one for both."""
    loops = shared(Loops, PRESETS[name])
    generator = random.Random(name)
    order = [generator.choice(UNITS) for _ in range(30)]
    items = [generator.randint(1, 5) for _ in order]
    pause = pauses(stalls, 3)
    # How many commands of the other unit have been issued before.
    after = [at - order[:at].count(unit) for at, unit in enumerate(order)]
    waits = {
        unit: [n for own, n in zip(order, after, strict=True) if own == unit] for unit in UNITS
    }
    begun: dict[str, int] = dict.fromkeys(UNITS, 0)
    taken: dict[str, int] = dict.fromkeys(UNITS, 0)
    done: dict[str, int] = dict.fromkeys(UNITS, 0)

    async def issue(ctx: Any) -> None:
        for unit, count, others in zip(order, items, after, strict=True):
            ctx.set(loops.for_alu, unit == "alu")
            command = {"uop_end": 1, "iter_out": 1, "iter_in": count}
            port = getattr(loops, f"{unit}_command")
            await put_all(ctx, port, [{"command": command, "follows": others - 1}])

    async def execute(ctx: Any) -> None:
        while sum(done.values()) < len(order):
            ready = {unit: not pause() for unit in UNITS}
            for unit in UNITS:
                ctx.set(getattr(loops, unit).ready, ready[unit])
            ports = [
                port
                for unit in UNITS
                for port in (
                    getattr(loops, f"{unit}_begins"),
                    getattr(loops, unit).valid,
                    getattr(loops, unit).payload.last,
                )
            ]
            _, _, *found = await ctx.tick().sample(*ports)
            for unit, (begins, valid, last) in zip(UNITS, (found[:3], found[3:]), strict=True):
                if begins:
                    other = UNITS[1 - UNITS.index(unit)]
                    assert done[other] >= waits[unit][begun[unit]]
                    begun[unit] += 1
                if valid and ready[unit]:
                    taken[unit] += 1
                    done[unit] += last
            for unit in UNITS:
                ctx.set(getattr(loops, f"{unit}_done"), done[unit])
        await ctx.tick()
        assert ctx.get(loops.gemm_level) == ctx.get(loops.alu_level) == 0

    simulate(loops, issue, execute)
    assert begun == done == {unit: order.count(unit) for unit in UNITS}
    for unit in UNITS:
        assert taken[unit] == sum(n for own, n in zip(order, items, strict=True) if own == unit)
