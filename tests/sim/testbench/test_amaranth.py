from __future__ import annotations

from typing import Any

import pytest

from amaranth_vta.hw.queues.queue import Queue
from amaranth_vta.sim.testbench import amaranth
from amaranth_vta.sim.testbench.amaranth import shared, simulate


def test_a_testbench_that_waits_for_what_does_not_come_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(amaranth, "_MAX_CYCLES", 100)
    queue = Queue(8, 2)

    # Not by `until`: Amaranth cannot close one that is left waiting.
    async def wait(ctx: Any) -> None:
        while not ctx.get(queue.o.valid):
            await ctx.tick()

    with pytest.raises(TimeoutError, match="has not ended after 100 cycles"):
        simulate(queue, wait)


def test_each_simulation_of_a_shared_component_starts_from_reset() -> None:
    queue = shared(Queue, 8, 2)
    assert shared(Queue, 8, 2) is queue
    assert shared(Queue, 8, 4) is not queue
    seen: list[list[int]] = []

    async def fill(ctx: Any) -> None:
        ctx.set(queue.i.payload, 5)
        ctx.set(queue.i.valid, 1)
        while True:
            await ctx.tick()

    async def look(ctx: Any) -> None:
        before = ctx.get(queue.i.valid), ctx.get(queue.o.valid), ctx.get(queue.i.ready)
        await ctx.tick().repeat(6)
        seen.append([*before, ctx.get(queue.o.valid), ctx.get(queue.i.ready)])

    async def fail(ctx: Any) -> None:
        await ctx.tick().repeat(3)
        raise ArithmeticError

    simulate(queue, look, background=[fill])
    simulate(queue, look)  # without what the testbench above drives
    with pytest.raises(ArithmeticError):
        simulate(queue, fail, background=[fill])
    simulate(queue, look, background=[fill])
    filled, empty = [1, 0, 1, 1, 0], [0, 0, 1, 0, 1]
    assert seen == [filled, empty, filled]
