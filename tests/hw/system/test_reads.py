"""Reads of several machines: each receives its beats in order."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.system.reads import SharedReads
from amaranth_vta.sim.testbench.amaranth import (
    Pauses,
    get_all,
    never,
    pauses,
    put_all,
    shared,
    simulate,
)

MACHINES, WIDTH, DEPTH = 3, 64, 64
# Every byte differs from its neighbours; no burst crosses 4 KiB.
DRAM = np.random.default_rng(0).integers(0, 256, 1 << 14, dtype=np.uint8)
BAD = 0x1008


def bursts(seed: int, count: int = 12) -> list[tuple[int, int]]:
    """Random bursts: first beat and number of beats, within one page each."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        beats = chance.choice((1, 1, 2, 3, chance.randint(1, 64)))
        first = chance.randrange(512 - beats + 1)
        found.append((512 * chance.randrange(4) + first, beats))
    return found


def expected(asked: Sequence[tuple[int, int]]) -> list[dict[str, int]]:
    return [
        {
            "data": int.from_bytes(DRAM[8 * at : 8 * at + 8].tobytes(), "little"),
            "last": int(at == first + beats - 1),
        }
        for first, beats in asked
        for at in range(first, first + beats)
    ]


def memory(bus: Any, pause: Pauses = never) -> Any:
    """A process that interleaves words of different machines at random; each machine's own words
    are in order.
    """
    chance, size = random.Random(5), len(bus.beat.payload.data) // 8
    due: list[deque[int]] = [deque() for _ in range(MACHINES)]

    async def serve(ctx: Any) -> None:
        while True:
            ctx.set(bus.request.ready, not pause())
            waiting = [number for number in range(MACHINES) if due[number]]
            valid = bool(waiting) and not pause()
            if valid:
                number = chance.choice(waiting)
                address = due[number].popleft()
                data = int.from_bytes(DRAM[address : address + size].tobytes(), "little")
                error = int(address <= BAD < address + size)
                ctx.set(bus.beat.payload, {"id": number, "data": data, "error": error})
            ctx.set(bus.beat.valid, valid)
            _, _, asked, ready, request, taken = await ctx.tick().sample(
                bus.request.valid, bus.request.ready, bus.request.payload, bus.beat.ready
            )
            assert taken, "a word must be accepted in every cycle"
            if asked and ready:
                burst = request.burst
                end = burst.address + (burst.length + 1) * size
                assert burst.address % size == 0
                assert burst.address // 4096 == (end - 1) // 4096
                due[request.id].extend(range(burst.address, end, size))

    return serve


@pytest.mark.parametrize("bus_width", [64, 128, 256])
@pytest.mark.parametrize("paused", [0.0, 0.3])
def test_each_machine_gets_its_own_beats(bus_width: int, paused: float) -> None:
    dut = shared(SharedReads, MACHINES, WIDTH, bus_width, DEPTH)
    pause = pauses(paused, 1)
    asked = [bursts(number) for number in range(MACHINES)]

    def benches(number: int) -> list[Any]:
        port = dut.machines[number]

        async def ask(ctx: Any) -> None:
            requests = [{"address": 8 * at, "length": beats - 1} for at, beats in asked[number]]
            await put_all(ctx, port.request, requests, pause)

        async def take(ctx: Any) -> None:
            wanted = expected(asked[number])
            beats = await get_all(ctx, port.beat, len(wanted), pause)
            assert [{"data": beat.data, "last": beat.last} for beat in beats] == wanted

        return [ask, take]

    running = [bench for number in range(MACHINES) for bench in benches(number)]
    simulate(dut, *running, background=[memory(dut.bus, pause)])


def test_a_machine_that_takes_nothing_does_not_delay_the_others() -> None:
    """Machine 0 asks for more than its buffer holds and accepts no beat."""
    dut = shared(SharedReads, MACHINES, WIDTH, 128, DEPTH)
    asked = bursts(7, count=20)

    async def stall(ctx: Any) -> None:
        requests = [{"address": 0, "length": 63}] * 9
        await put_all(ctx, dut.machines[0].request, requests)

    async def ask(ctx: Any) -> None:
        requests = [{"address": 8 * at, "length": beats - 1} for at, beats in asked]
        await put_all(ctx, dut.machines[1].request, requests)

    async def take(ctx: Any) -> None:
        wanted = expected(asked)
        beats = await get_all(ctx, dut.machines[1].beat, len(wanted), within=len(wanted) + 300)
        assert [beat.data for beat in beats] == [item["data"] for item in wanted]

    simulate(dut, ask, take, background=[stall, memory(dut.bus)])


def test_an_error_reaches_only_the_beats_of_its_word() -> None:
    dut = shared(SharedReads, MACHINES, WIDTH, 128, DEPTH)

    async def ask(ctx: Any) -> None:
        await put_all(ctx, dut.machines[2].request, [{"address": 0xFF8, "length": 0}])
        await put_all(ctx, dut.machines[2].request, [{"address": 0x1000, "length": 3}])

    async def take(ctx: Any) -> None:
        beats = await get_all(ctx, dut.machines[2].beat, 5)
        assert [beat.error for beat in beats] == [0, 1, 1, 0, 0]

    simulate(dut, ask, take, background=[memory(dut.bus)])


def test_bursts_of_all_machines_take_turns() -> None:
    dut = shared(SharedReads, MACHINES, WIDTH, 128, DEPTH)

    def ask(number: int) -> Any:
        async def bench(ctx: Any) -> None:
            requests = [{"address": 0, "length": 0}] * 4
            await put_all(ctx, dut.machines[number].request, requests)

        return bench

    async def order(ctx: Any) -> None:
        requests = await get_all(ctx, dut.bus.request, 12)
        served = [request.id for request in requests]
        for at in range(len(served) - MACHINES + 1):
            assert len(set(served[at : at + MACHINES])) == MACHINES

    simulate(dut, order, background=[ask(number) for number in range(MACHINES)])
