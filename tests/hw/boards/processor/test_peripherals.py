"""The registers with which firmware receives and sends bytes and reads the time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from amaranth_vta.hw.boards.processor.parameters import (
    LOST,
    PERIPHERAL_BASE,
    RECEIVED,
    RECEIVED_BYTES,
    Peripheral,
)
from amaranth_vta.hw.boards.processor.peripherals import Peripherals
from amaranth_vta.sim.testbench.amaranth import simulate
from tests.support.word_access import access


class Bench:
    def __init__(self) -> None:
        self.dut = Peripherals()

    async def read(self, ctx: Any, register: int) -> int:
        value, error = await access(ctx, self.dut.access, PERIPHERAL_BASE + 4 * register)
        assert not error
        return value

    async def arrive(self, ctx: Any, *data: int) -> None:
        ctx.set(self.dut.i.valid, 1)
        for byte in data:
            ctx.set(self.dut.i.payload, byte)
            await ctx.tick()
        ctx.set(self.dut.i.valid, 0)

    def run(self, test: Callable[[Any], Awaitable[None]]) -> None:
        simulate(self.dut, test)


def test_received_bytes_are_read_once_and_in_order() -> None:
    bench = Bench()

    async def test(ctx: Any) -> None:
        assert await bench.read(ctx, Peripheral.RECEIVE) == 0
        await bench.arrive(ctx, 0, 0xA5, 7)
        for byte in (0, 0xA5, 7):
            assert await bench.read(ctx, Peripheral.RECEIVE) == RECEIVED | byte
        assert await bench.read(ctx, Peripheral.RECEIVE) == 0

    bench.run(test)


def test_an_overflow_is_reported_once() -> None:
    bench = Bench()

    async def test(ctx: Any) -> None:
        await bench.arrive(ctx, *range(RECEIVED_BYTES + 1))
        assert await bench.read(ctx, Peripheral.RECEIVE) == LOST | RECEIVED | 0
        for byte in range(1, RECEIVED_BYTES):
            assert await bench.read(ctx, Peripheral.RECEIVE) == RECEIVED | byte
        assert await bench.read(ctx, Peripheral.RECEIVE) == 0

    bench.run(test)


def test_a_byte_is_offered_until_it_is_accepted() -> None:
    bench = Bench()

    async def test(ctx: Any) -> None:
        dut, send = bench.dut, PERIPHERAL_BASE + 4 * Peripheral.SEND
        assert await bench.read(ctx, Peripheral.SEND) == 0
        await access(ctx, dut.access, send, 0x5A)
        for _ in range(5):
            *_, valid, byte = await ctx.tick().sample(dut.o.valid, dut.o.payload)
            assert (valid, byte) == (1, 0x5A)
        assert await bench.read(ctx, Peripheral.SEND) == 1
        ctx.set(dut.o.ready, 1)
        await ctx.tick()
        ctx.set(dut.o.ready, 0)
        assert await bench.read(ctx, Peripheral.SEND) == 0

    bench.run(test)


def test_a_reset_empties_both_directions() -> None:
    bench = Bench()

    async def test(ctx: Any) -> None:
        dut = bench.dut
        await access(ctx, dut.access, PERIPHERAL_BASE + 4 * Peripheral.SEND, 1)
        await bench.arrive(ctx, *range(RECEIVED_BYTES + 1))
        ctx.set(dut.rst, 1)
        await ctx.tick().repeat(RECEIVED_BYTES + 1)
        ctx.set(dut.rst, 0)
        assert await bench.read(ctx, Peripheral.RECEIVE) == 0
        assert await bench.read(ctx, Peripheral.SEND) == 0

    bench.run(test)


def test_the_two_words_of_the_time_belong_together() -> None:
    bench = Bench()

    async def test(ctx: Any) -> None:
        await ctx.tick().repeat(10)
        first = await bench.read(ctx, Peripheral.CYCLES_LOW)
        assert first == 10
        assert await bench.read(ctx, Peripheral.CYCLES_HIGH) == 0
        # Two accesses of two cycles each.
        assert await bench.read(ctx, Peripheral.CYCLES_LOW) == first + 4

    bench.run(test)


def test_an_address_without_a_register_is_an_error() -> None:
    bench = Bench()

    async def test(ctx: Any) -> None:
        _, error = await access(ctx, bench.dut.access, PERIPHERAL_BASE + 16)
        assert error

    bench.run(test)
