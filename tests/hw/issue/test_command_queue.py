"""Commands leave the queue in order, none before it may start."""

from __future__ import annotations

import random
from typing import Any

import pytest

from amaranth_vta.hw.issue.command_queue import COUNT_WIDTH, CommandQueue
from amaranth_vta.hw.timing import INSTRUCTIONS_IN_FLIGHT
from amaranth_vta.sim.testbench.amaranth import pauses, put_all, shared, simulate


@pytest.mark.parametrize("depth", [2, 8])
@pytest.mark.parametrize(("gaps", "stalls"), [(0, 0), (0.5, 0), (0, 0.5), (0.3, 0.3)])
def test_each_command_waits_for_those_of_the_other_unit(
    depth: int, gaps: float, stalls: float
) -> None:
    """The counter of the other unit wraps around several times."""
    queue = shared(CommandQueue, 16, depth)
    generator = random.Random(1)
    afters = [0]
    for _ in range(150):
        afters.append(afters[-1] + generator.choice([0, 0, 1, 2, 5]))
    items = [
        {"command": number, "follows": (after - 1) % (1 << COUNT_WIDTH)}
        for number, after in enumerate(afters)
    ]
    taken: list[int] = []

    async def put(ctx: Any) -> None:
        await put_all(ctx, queue.i, items, pauses(gaps, 1))

    async def get(ctx: Any) -> None:
        stall, done = pauses(stalls, 2), 0
        for _ in range(3000):
            if len(taken) == len(items):
                return
            # Bound the lead of the other unit by the instructions in flight, before and after the
            # command.
            ahead = afters[len(taken)] + 2 * (INSTRUCTIONS_IN_FLIGHT - 1)
            ends = generator.random() < 0.9 and done < ahead
            ctx.set(queue.other_done, done % (1 << COUNT_WIDTH))
            ctx.set(queue.other_ends, ends)
            done += ends
            ctx.set(queue.o.ready, int(not stall()))
            _, _, valid, ready, command = await ctx.tick().sample(
                queue.o.valid, queue.o.ready, queue.o.payload
            )
            if valid:
                assert done >= afters[len(taken)]
            if valid and ready:
                assert command == len(taken)
                taken.append(command)

    simulate(queue, get, background=[put])
    assert len(taken) == len(items)


def test_a_command_passes_an_empty_queue_in_its_cycle() -> None:
    queue = shared(CommandQueue, 8, 2)

    async def check(ctx: Any) -> None:
        ctx.set(queue.i.valid, 1)
        ctx.set(queue.i.payload, {"command": 5, "follows": 0})
        assert not ctx.get(queue.o.valid)
        ctx.set(queue.other_ends, 1)
        assert ctx.get(queue.o.valid)
        assert ctx.get(queue.o.payload) == 5
        ctx.set(queue.o.ready, 1)
        await ctx.tick()
        assert ctx.get(queue.level) == 0

    simulate(queue, check)


def test_an_independent_command_waits_for_nothing() -> None:
    queue = shared(CommandQueue, 8, 2)

    async def check(ctx: Any) -> None:
        ctx.set(queue.i.valid, 1)
        ctx.set(queue.i.payload, {"command": 5, "follows": 0, "independent": 1})
        assert ctx.get(queue.o.valid)

    simulate(queue, check)


def test_it_holds_as_many_as_it_says() -> None:
    queue = shared(CommandQueue, 8, 8)

    async def fill(ctx: Any) -> None:
        ctx.set(queue.i.valid, 1)
        accepted = 0
        for _ in range(12):
            _, _, ready = await ctx.tick().sample(queue.i.ready)
            accepted += ready
        assert accepted == ctx.get(queue.level) == 8

    simulate(queue, fill)
