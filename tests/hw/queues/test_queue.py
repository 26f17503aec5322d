from __future__ import annotations

import random
from typing import Any

import pytest

from amaranth_vta.hw.interfaces import QueueEntry
from amaranth_vta.hw.isa import TOKEN_LIMIT
from amaranth_vta.hw.queues.queue import Queue, TokenCounter
from amaranth_vta.sim.testbench.amaranth import get_all, pauses, put_all, shared, simulate


@pytest.mark.parametrize(
    ("depth", "form"),
    [
        (2, {}),
        *((depth, form) for depth in (3, 64) for form in ({}, {"in_block_ram": True})),
        *((depth, {"registered": True}) for depth in (3, 8)),
    ],
)
@pytest.mark.parametrize(("gaps", "stalls"), [(0, 0), (0.5, 0), (0, 0.5), (0.3, 0.3)])
def test_queue_gives_back_everything_in_order(
    depth: int, form: dict[str, bool], gaps: float, stalls: float
) -> None:
    queue = shared(Queue, QueueEntry, depth, **form)
    generator = random.Random(1)
    items = [
        {"bits": generator.getrandbits(128), "index": generator.getrandbits(32)} for _ in range(150)
    ]
    taken: list = []

    async def put(ctx: Any) -> None:
        await put_all(ctx, queue.i, items, pauses(gaps, 1))

    async def get(ctx: Any) -> None:
        taken.extend(await get_all(ctx, queue.o, len(items), pauses(stalls, 2)))

    simulate(queue, put, get)
    assert [{"bits": item.bits, "index": item.index} for item in taken] == items


@pytest.mark.parametrize("depth", [2, 5])
def test_queue_holds_as_many_as_it_says(depth: int) -> None:
    queue = shared(Queue, 8, depth)

    async def fill(ctx: Any) -> None:
        ctx.set(queue.i.valid, 1)
        accepted = 0
        for _ in range(depth + 3):
            _, _, ready = await ctx.tick().sample(queue.i.ready)
            accepted += ready
        assert accepted == depth

    simulate(queue, fill)


def test_queue_passes_an_item_in_every_cycle() -> None:
    queue = shared(Queue, 8, 2)
    cycles = 0

    async def put(ctx: Any) -> None:
        await put_all(ctx, queue.i, range(100))

    async def get(ctx: Any) -> None:
        nonlocal cycles
        ctx.set(queue.o.ready, 1)
        count = 0
        while count < 100:
            _, _, valid = await ctx.tick().sample(queue.o.valid)
            count += valid
            cycles += 1

    simulate(queue, put, get)
    assert cycles == 101


def test_token_counter_counts_gives_and_takes_of_the_same_cycle() -> None:
    counter = shared(TokenCounter)

    async def check(ctx: Any) -> None:
        assert not ctx.get(counter.available)
        ctx.set(counter.give, 1)
        await ctx.tick()
        assert ctx.get(counter.available)
        assert ctx.get(counter.count) == 1
        ctx.set(counter.take, 1)
        await ctx.tick()
        assert ctx.get(counter.count) == 1
        ctx.set(counter.give, 0)
        await ctx.tick()
        assert ctx.get(counter.count) == 0
        assert not ctx.get(counter.available)

    simulate(counter, check)


def test_token_counter_is_full_at_its_limit() -> None:
    counter = shared(TokenCounter)

    async def check(ctx: Any) -> None:
        ctx.set(counter.give, 1)
        for _ in range(TOKEN_LIMIT):
            assert not ctx.get(counter.full)
            await ctx.tick()
        assert ctx.get(counter.full)

    simulate(counter, check)
