"""The bank of counters against sums in Python."""

from __future__ import annotations

import random
from typing import Any

from amaranth_vta.hw.counters.bank import CounterBank
from amaranth_vta.sim.testbench.amaranth import simulate

EVENTS = {"first": 1, "second": 4, "third": 1, "fourth": 2, "fifth": 3}


def test_sums_are_exact_once_settled_and_start_from_zero_at_each_clear() -> None:
    dut = CounterBank(EVENTS)

    async def check(ctx: Any) -> None:
        generator = random.Random(1)
        totals = dict.fromkeys(EVENTS, 0)
        # Skip reading after some runs, so that the next run begins before their sums have settled.
        # The last run continues the sums of its predecessor.
        for length, is_read, continues in (
            *((1, 1, 0), (2, 1, 0), (7, 0, 0), (8, 1, 0), (9, 0, 0), (3, 1, 0), (300, 1, 0)),
            (5, 1, 1),
        ):
            if not continues:
                ctx.set(dut.clear, 1)
                await ctx.tick()
                ctx.set(dut.clear, 0)
                totals = dict.fromkeys(EVENTS, 0)
            ctx.set(dut.counting, 1)
            for cycle in range(length):
                for name, width in EVENTS.items():
                    # Maximum increments at first, to detect overflow within a counter.
                    most = (1 << width) - 1
                    added = most if cycle < 40 else generator.randint(0, most)
                    ctx.set(getattr(dut, name), added)
                    totals[name] += added
                # Also in the first cycle, when earlier sums have settled.
                assert not ctx.get(dut.settled)
                await ctx.tick()
                assert not ctx.get(dut.settled)
            for name in EVENTS:
                ctx.set(getattr(dut, name), 0)
            ctx.set(dut.counting, 0)
            if not is_read:
                continue
            await ctx.tick().until(dut.settled)
            for number, name in enumerate(EVENTS):
                ctx.set(dut.index, number)
                assert ctx.get(dut.value) == totals[name], (length, name)

    simulate(dut, check)
