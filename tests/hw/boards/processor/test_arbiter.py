"""Two initiators of word accesses at one target."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from amaranth_vta.hw.boards.processor.arbiter import AccessArbiter
from amaranth_vta.sim.testbench.amaranth import simulate
from tests.support.word_access import access


def run(*benches: Callable[[Any], Awaitable[None]], dut: AccessArbiter, delay: int) -> list:
    """Run ``benches`` with a target that returns its address plus 1 after ``delay`` cycles.
    Returns the addresses in the order of the accesses.
    """
    accesses: list[int] = []

    async def serve(ctx: Any) -> None:
        ctx.set(dut.o.request.ready, 1)
        while True:
            request = dut.o.request
            *_, valid, address = await ctx.tick().sample(request.valid, request.payload.address)
            if not valid:
                continue
            ctx.set(dut.o.request.ready, 0)
            accesses.append(address)
            for _ in range(delay):
                await ctx.tick()
            ctx.set(dut.o.done, 1)
            ctx.set(dut.o.data, address + 1)
            ctx.set(dut.o.request.ready, 1)
            await ctx.tick()
            ctx.set(dut.o.done, 0)

    simulate(dut, *benches, background=[serve])
    return accesses


def test_each_initiator_gets_the_responses_to_its_own_accesses() -> None:
    dut = AccessArbiter()
    for delay in (1, 3):

        async def first(ctx: Any) -> None:
            for address in range(0, 40, 4):
                assert await access(ctx, dut.first, address) == (address + 1, 0)
                await ctx.tick().repeat(1 + address % 3)

        async def second(ctx: Any) -> None:
            for address in range(100, 140, 4):
                assert await access(ctx, dut.second, address) == (address + 1, 0)

        accesses = run(first, second, dut=dut, delay=delay)
        assert sorted(accesses) == [*range(0, 40, 4), *range(100, 140, 4)]


def test_the_first_initiator_has_priority() -> None:
    dut = AccessArbiter()
    order: list[str] = []

    async def first(ctx: Any) -> None:
        await ctx.tick().repeat(2)  # an access of the second initiator is in flight
        for _ in range(3):
            await access(ctx, dut.first, 0)
            order.append("first")

    async def second(ctx: Any) -> None:
        for _ in range(2):
            await access(ctx, dut.second, 4)
            order.append("second")

    run(first, second, dut=dut, delay=5)
    assert order[0] == "second"
    assert order.count("first") == 3


def test_the_response_to_an_abandoned_access_reaches_nobody() -> None:
    dut = AccessArbiter()
    abandoned: list[int] = []

    async def second(ctx: Any) -> None:
        ctx.set(dut.second.request.payload.address, 8)
        ctx.set(dut.second.request.valid, 1)
        await ctx.tick().until(dut.second.request.ready)
        ctx.set(dut.second.request.valid, 0)  # the initiator is reset here
        for _ in range(20):
            *_, done = await ctx.tick().sample(dut.first.done)
            abandoned.append(int(done))

    async def first(ctx: Any) -> None:
        await ctx.tick().repeat(30)
        assert await access(ctx, dut.first, 20) == (21, 0)

    assert run(second, first, dut=dut, delay=5) == [8, 20]
    assert not any(abandoned)
