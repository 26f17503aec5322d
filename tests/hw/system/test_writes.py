"""Writes of several machines: memory receives the bytes of each, burst by burst without gaps."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.system.writes import SharedWrites
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
REGION = 1 << 14  # bytes that a machine writes


class Writer:
    """Random bursts of one machine into its own region, and what memory then holds."""

    def __init__(self, number: int, count: int = 12) -> None:
        chance = random.Random(number)
        self.requests: list[dict[str, int]] = []
        self.beats: list[dict[str, int]] = []
        self.contents = np.zeros(REGION, np.uint8)
        for _ in range(count):
            beats = chance.choice((1, 2, 3, chance.randint(1, 64)))
            first = 512 * chance.randrange(4) + chance.randrange(512 - beats + 1)
            self.requests.append({"address": number * REGION + 8 * first, "length": beats - 1})
            for at in range(first, first + beats):
                data = chance.randbytes(8)
                strobe = chance.choice((0xFF, 0xFF, chance.randrange(256)))
                for byte in range(8):
                    if strobe >> byte & 1:
                        self.contents[8 * at + byte] = data[byte]
                last = int(at == first + beats - 1)
                beat = {"data": int.from_bytes(data, "little"), "strobe": strobe, "last": last}
                self.beats.append(beat)


class Memory:
    """Accepts bursts, and responds to different machines in any order; a burst to an
    address of ``bad`` with an error.
    """

    def __init__(self, bus: Any, pause: Pauses = never, bad: int | None = None) -> None:
        self.contents = np.zeros(MACHINES * REGION, np.uint8)
        self.bus, self.pause, self.bad = bus, pause, bad
        self.size = len(bus.beat.payload.strobe)
        self.gaps = 0

    async def serve(self, ctx: Any) -> None:
        bus, chance = self.bus, random.Random(3)
        announced: deque[tuple[int, int, int]] = deque()
        due: list[deque[int]] = [deque() for _ in range(MACHINES)]
        offered, at = False, 0
        while True:
            ctx.set(bus.request.ready, not self.pause())
            ctx.set(bus.beat.ready, bool(announced) and not self.pause())
            waiting = [number for number in range(MACHINES) if due[number]]
            if not offered and waiting and not self.pause():
                number, offered = chance.choice(waiting), True
                response = {"error": due[number].popleft()}
                ctx.set(bus.response.payload, {"id": number, "response": response})
            ctx.set(bus.response.valid, offered)
            _, _, asked, ready, request, sent, taken, beat, answered = await ctx.tick().sample(
                *(bus.request.valid, bus.request.ready, bus.request.payload),
                *(bus.beat.valid, bus.beat.ready, bus.beat.payload, bus.response.ready),
            )
            offered &= not answered
            if sent and taken:
                number, address, beats = announced[0]
                data = beat.data.to_bytes(self.size, "little")
                for byte in range(self.size):
                    if beat.strobe >> byte & 1:
                        self.contents[address + at * self.size + byte] = data[byte]
                at += 1
                assert beat.last == (at == beats)
                if beat.last:
                    announced.popleft()
                    end = address + beats * self.size
                    due[number].append(int(self.bad in range(address, end)))
                    at = 0
            else:
                self.gaps += bool(taken and at)
            if asked and ready:
                burst = request.burst
                assert burst.address % self.size == 0
                announced.append((request.id, burst.address, burst.length + 1))


@pytest.mark.parametrize("bus_width", [64, 128, 256])
@pytest.mark.parametrize("paused", [0.0, 0.3])
def test_memory_gets_the_bytes_of_each_machine(bus_width: int, paused: float) -> None:
    dut = shared(SharedWrites, MACHINES, WIDTH, bus_width, DEPTH)
    pause = pauses(paused, 1)
    writers = [Writer(number) for number in range(MACHINES)]
    memory = Memory(dut.bus, pause)

    def benches(number: int) -> list[Any]:
        port, writer = dut.machines[number], writers[number]

        async def announce(ctx: Any) -> None:
            await put_all(ctx, port.request, writer.requests, pause)

        async def send(ctx: Any) -> None:
            await put_all(ctx, port.beat, writer.beats, pause)

        async def receive(ctx: Any) -> None:
            responses = await get_all(ctx, port.response, len(writer.requests), pause)
            assert not any(response.error for response in responses)

        return [announce, send, receive]

    running = [bench for number in range(MACHINES) for bench in benches(number)]
    simulate(dut, *running, background=[memory.serve])
    for number, writer in enumerate(writers):
        own = memory.contents[number * REGION : (number + 1) * REGION]
        np.testing.assert_array_equal(own, writer.contents)
    # No burst holds the bus while its words have not arrived.
    assert paused or not memory.gaps


def test_a_machine_that_stalls_within_a_burst_does_not_block_the_others() -> None:
    dut = shared(SharedWrites, MACHINES, WIDTH, 128, DEPTH)
    writer, memory = Writer(1), Memory(dut.bus)

    async def stall(ctx: Any) -> None:
        await put_all(ctx, dut.machines[0].request, [{"address": 0, "length": 7}])
        await put_all(ctx, dut.machines[0].beat, [{"data": 0, "strobe": 255, "last": 0}] * 3)

    async def announce(ctx: Any) -> None:
        await put_all(ctx, dut.machines[1].request, writer.requests)

    async def send(ctx: Any) -> None:
        await put_all(ctx, dut.machines[1].beat, writer.beats)

    async def receive(ctx: Any) -> None:
        await get_all(ctx, dut.machines[1].response, len(writer.requests), within=2000)

    simulate(dut, announce, send, receive, background=[stall, memory.serve])
    np.testing.assert_array_equal(memory.contents[REGION : 2 * REGION], writer.contents)


def test_an_error_reaches_the_machine_that_wrote() -> None:
    dut = shared(SharedWrites, MACHINES, WIDTH, 128, DEPTH)
    memory = Memory(dut.bus, bad=REGION + 8)

    def write(number: int) -> Any:
        async def bench(ctx: Any) -> None:
            port = dut.machines[number]
            request = {"address": number * REGION, "length": 0}
            await put_all(ctx, port.request, [request])
            await put_all(ctx, port.beat, [{"data": 1, "strobe": 255, "last": 1}])
            (response,) = await get_all(ctx, port.response, 1)
            assert response.error == (number == 1)

        return bench

    simulate(dut, *(write(number) for number in range(MACHINES)), background=[memory.serve])
