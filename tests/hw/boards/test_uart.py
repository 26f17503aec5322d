from __future__ import annotations

from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.sim import Simulator

from amaranth_vta.hw.boards.uart import UartReceiver, UartTransmitter
from amaranth_vta.sim.testbench.amaranth import put_all


@pytest.mark.parametrize(("sender", "receiver"), [(4, 4), (25, 25), (25, 26)])
def test_what_is_sent_is_received_at_slightly_different_rates_too(
    sender: int, receiver: int
) -> None:
    m = Module()
    m.submodules.tx = tx = UartTransmitter(sender)
    m.submodules.rx = rx = UartReceiver(receiver)
    m.d.comb += rx.pin.eq(tx.pin)
    data = [0x00, 0xFF, 0xA5, 0x01, 0x80]
    received: list[int] = []

    async def send(ctx: Any) -> None:
        await put_all(ctx, tx.i, data)
        await ctx.tick().repeat(12 * sender)
        assert received == data

    async def receive(ctx: Any) -> None:
        async for _, _, valid, byte in ctx.tick().sample(rx.o.valid, rx.o.payload):
            if valid:
                received.append(byte)

    _simulate(m, send, receive)


def test_the_bits_on_the_line_are_8n1() -> None:
    tx = UartTransmitter(4)
    line: list[int] = []

    async def send(ctx: Any) -> None:
        await put_all(ctx, tx.i, [0b1100_0101])
        await ctx.tick().repeat(44)
        start = line.index(0)
        # A start bit, eight data bits with the lowest first, a stop bit.
        assert line[start : start + 40] == [bit for bit in map(int, "0101000111") for _ in range(4)]

    async def watch(ctx: Any) -> None:
        async for _, _, pin in ctx.tick().sample(tx.pin):
            line.append(pin)

    _simulate(tx, send, watch)


def test_disturbances_and_bytes_without_a_stop_bit_are_dropped() -> None:
    rx = UartReceiver(8)
    received: list[int] = []

    async def disturb(ctx: Any) -> None:
        for cycles in (1, 3, 8 * 10):  # the last one: zeros where the stop bit should be
            ctx.set(rx.pin, 0)
            await ctx.tick().repeat(cycles)
            ctx.set(rx.pin, 1)
            await ctx.tick().repeat(100)
        assert received == []

    async def receive(ctx: Any) -> None:
        async for _, _, valid, byte in ctx.tick().sample(rx.o.valid, rx.o.payload):
            if valid:
                received.append(byte)

    _simulate(rx, disturb, receive)


def _simulate(dut: Module | wiring.Component, test: Any, background: Any) -> None:
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(background, background=True)
    simulator.add_testbench(test)
    simulator.run()
