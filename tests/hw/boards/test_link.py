"""The gateware's end of the host link, against frames assembled by hand."""

from __future__ import annotations

import binascii
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from amaranth_vta.hw.boards.link import Link
from amaranth_vta.sim.amaranth_internals.simulator import simulator

GAP = 200
READ, WRITE, FILL, IDENTIFY = 1, 2, 3, 0
DONE, OUT_OF_ORDER, REFUSED = 0, 1, 2


def request(
    sequence: int, command: int, words: int, address: int = 0, payload: bytes = b""
) -> bytes:
    body = struct.pack("<BBBI", sequence, command, words, address) + payload
    return b"\xa5" + body + struct.pack("<I", binascii.crc32(body))


def reply(sequence: int, status: int, payload: bytes = b"") -> bytes:
    body = bytes([sequence, len(payload) // 4]) + payload + bytes([status])
    return b"\x5a" + body + struct.pack("<I", binascii.crc32(body))


class Bench:
    """The serial link to a memory of words; accesses from word ``end`` on return errors."""

    def __init__(self, end: int = 0x1000) -> None:
        self.dut = Link(GAP)
        self.end = end
        self.memory: dict[int, int] = {}
        self.accesses: list[tuple[int, bool]] = []
        self.answered = bytearray()

    def run(self, test: Callable[[Any], Awaitable[None]]) -> None:
        simulation = simulator(self.dut)
        simulation.add_clock(1e-6)
        simulation.add_testbench(self._serve, background=True)
        simulation.add_testbench(self._collect, background=True)
        simulation.add_testbench(test)
        simulation.run()

    async def send(self, ctx: Any, data: bytes) -> None:
        for byte in data:
            ctx.set(self.dut.i.payload, byte)
            ctx.set(self.dut.i.valid, 1)
            await ctx.tick()
            ctx.set(self.dut.i.valid, 0)
            await ctx.tick().repeat(3)

    async def expect(self, ctx: Any, data: bytes) -> None:
        for _ in range(40 * len(data) + 400):
            await ctx.tick()
        assert bytes(self.answered) == data
        self.answered.clear()

    async def _collect(self, ctx: Any) -> None:
        out = self.dut.o
        while True:
            # The line takes a byte only every few cycles.
            for _ in range(5):
                await ctx.tick()
            ctx.set(out.ready, 1)
            _, _, valid, byte = await ctx.tick().sample(out.valid, out.payload)
            ctx.set(out.ready, 0)
            if valid:
                self.answered.append(byte)

    async def _serve(self, ctx: Any) -> None:
        access = self.dut.access
        ctx.set(access.request.ready, 1)
        while True:
            _, _, valid, wanted = await ctx.tick().sample(
                access.request.valid, access.request.payload
            )
            if not valid:
                continue
            self.accesses.append((wanted.address, bool(wanted.write)))
            if wanted.write and wanted.address < self.end:
                self.memory[wanted.address] = wanted.data
            ctx.set(access.data, self.memory.get(wanted.address, 0))
            ctx.set(access.error, wanted.address >= self.end)
            ctx.set(access.done, 1)
            await ctx.tick()
            ctx.set(access.done, 0)


WORDS = struct.pack("<3I", 0x11223344, 0xDEADBEEF, 7)


def test_what_is_written_can_be_read() -> None:
    bench = Bench()

    async def test(ctx: Any) -> None:
        await bench.send(ctx, request(0, WRITE, 3, 0x40, WORDS))
        await bench.expect(ctx, reply(0, DONE))
        await bench.send(ctx, request(1, READ, 2, 0x44))
        await bench.expect(ctx, reply(1, DONE, WORDS[4:]))

    bench.run(test)


def test_identify_is_answered_whatever_its_number_and_the_next_ones_count_from_it() -> None:
    bench = Bench(end=1 << 32)

    async def test(ctx: Any) -> None:
        bench.memory.update({0xC0000000 + 4 * at: at for at in range(8)})
        await bench.send(ctx, request(200, IDENTIFY, 0))
        await bench.expect(ctx, reply(200, DONE, struct.pack("<6I", *range(6))))
        await bench.send(ctx, request(201, WRITE, 1, 0, WORDS[:4]))
        await bench.expect(ctx, reply(201, DONE))

    bench.run(test)


def test_a_request_is_executed_once_however_often_it_comes() -> None:
    bench = Bench()

    async def test(ctx: Any) -> None:
        await bench.send(ctx, request(0, WRITE, 1, 0x40, WORDS[:4]))
        await bench.send(ctx, request(0, WRITE, 1, 0x40, WORDS[:4]))
        await bench.expect(ctx, 2 * reply(0, DONE))
        assert bench.accesses == [(0x40, True)]

    bench.run(test)


def test_a_request_ahead_of_its_turn_is_not_executed() -> None:
    bench = Bench()

    async def test(ctx: Any) -> None:
        await bench.send(ctx, request(1, WRITE, 1, 0x40, WORDS[:4]))
        await bench.expect(ctx, reply(1, OUT_OF_ORDER))
        assert bench.accesses == []

    bench.run(test)


def test_one_write_fills_memory_with_a_word() -> None:
    bench = Bench()

    async def test(ctx: Any) -> None:
        await bench.send(ctx, request(0, FILL, 2, 0x100, struct.pack("<2I", 0xA5A5A5A5, 5)))
        await bench.expect(ctx, reply(0, DONE))
        assert bench.memory == {0x100 + 4 * at: 0xA5A5A5A5 for at in range(5)}

    bench.run(test)


@pytest.mark.parametrize(
    "data",
    [
        request(0, 9, 0),
        request(0, READ, 0),
        request(0, WRITE, 0),
        request(0, FILL, 1, 0, WORDS[:4]),
        request(0, WRITE, 1, 0x1000, WORDS[:4]),
    ],
    ids=["command", "no words to read", "no words to write", "fill", "address"],
)
def test_what_cannot_be_done_is_refused(data: bytes) -> None:
    bench = Bench()

    async def test(ctx: Any) -> None:
        await bench.send(ctx, data)
        await bench.expect(ctx, reply(0, REFUSED))
        await bench.send(ctx, request(1, READ, 1, 0))
        await bench.expect(ctx, reply(1, DONE, bytes(4)))

    bench.run(test)


@pytest.mark.parametrize("bit", [9, 20, 24, 50, 70, 100])
def test_a_flipped_bit_is_dropped_without_an_answer(bit: int) -> None:
    bench = Bench()
    frame = bytearray(request(0, WRITE, 1, 0x40, WORDS[:4]))
    frame[bit // 8] ^= 1 << bit % 8

    async def test(ctx: Any) -> None:
        await bench.send(ctx, bytes(frame))
        await ctx.tick().repeat(2 * GAP)
        await bench.expect(ctx, b"")
        assert bench.accesses == []
        assert ctx.get(bench.dut.dropped) == 1
        await bench.send(ctx, request(0, WRITE, 1, 0x40, WORDS[:4]))
        await bench.expect(ctx, reply(0, DONE))

    bench.run(test)


@pytest.mark.parametrize("kept", [1, 5, 8, 10, 17])
def test_a_request_that_is_cut_is_forgotten_after_a_while(kept: int) -> None:
    bench = Bench()

    async def test(ctx: Any) -> None:
        await bench.send(ctx, request(0, WRITE, 3, 0x40, WORDS)[:kept])
        await ctx.tick().repeat(GAP + 10)
        await bench.send(ctx, request(0, WRITE, 3, 0x40, WORDS))
        await bench.expect(ctx, reply(0, DONE))

    bench.run(test)
