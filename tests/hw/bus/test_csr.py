from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import pytest

from amaranth_vta.hw.bus.csr import RegisterFile
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.registers import IDENTITY, REGISTERS, WORD_BYTES, Access
from amaranth_vta.sim.testbench.amaranth import Pauses, pauses, simulate

CONFIG = PRESETS["batch2"]


async def write(ctx: Any, bus: Any, address: int, data: int, strobe: int, pause: Pauses) -> None:
    """One write: address, data and the acceptance of the response in the order that `pause`
    gives."""
    address_left, data_left = True, True
    answered = False
    while not answered:
        ctx.set(bus.awvalid, address_left and (bool(ctx.get(bus.awvalid)) or not pause()))
        ctx.set(bus.wvalid, data_left and (bool(ctx.get(bus.wvalid)) or not pause()))
        ctx.set(bus.awaddr, address)
        ctx.set(bus.wdata, data)
        ctx.set(bus.wstrb, strobe)
        ctx.set(bus.bready, not pause())
        _, _, aw, awready, w, wready, b, bready = await ctx.tick().sample(
            bus.awvalid, bus.awready, bus.wvalid, bus.wready, bus.bvalid, bus.bready
        )
        address_left &= not (aw and awready)
        data_left &= not (w and wready)
        if not address_left:
            ctx.set(bus.awvalid, 0)
        if not data_left:
            ctx.set(bus.wvalid, 0)
        answered = bool(b and bready)
    ctx.set(bus.bready, 0)


async def read(ctx: Any, bus: Any, address: int, pause: Pauses) -> int:
    while pause():
        await ctx.tick()
    ctx.set(bus.araddr, address)
    ctx.set(bus.arvalid, 1)
    await ctx.tick().until(bus.arready)
    ctx.set(bus.arvalid, 0)
    while True:
        ctx.set(bus.rready, not pause())
        _, _, valid, ready, data = await ctx.tick().sample(bus.rvalid, bus.rready, bus.rdata)
        if valid and ready:
            ctx.set(bus.rready, 0)
            return int(data)


@pytest.mark.parametrize("probability", [0, 0.5])
def test_registers_hold_what_is_written_byte_by_byte(probability: float) -> None:
    dut = RegisterFile(CONFIG)
    words = [
        register.offset + WORD_BYTES * number
        for register in REGISTERS.values()
        if register.access is Access.READ_WRITE
        for number in range(register.width // 32)
    ]

    async def check(ctx: Any) -> None:
        pause = pauses(probability, 1)
        generator = random.Random(2)
        expected = dict.fromkeys(words, 0)
        for _ in range(40):
            address = generator.choice(words)
            data, strobe = generator.getrandbits(32), generator.getrandbits(4)
            await write(ctx, dut.bus, address, data, strobe, pause)
            mask = sum(0xFF << 8 * byte for byte in range(4) if strobe >> byte & 1)
            expected[address] = (expected[address] & ~mask) | (data & mask)
            other = generator.choice(words)
            assert await read(ctx, dut.bus, other, pause) == expected[other]
        low, high = REGISTERS["INSN_ADDR"].offset, REGISTERS["INSN_ADDR"].offset + WORD_BYTES
        assert ctx.get(dut.insn_addr) == expected[low] | expected[high] << 32

    simulate(dut, check)


def test_identity_and_every_parameter_of_the_configuration_are_readable() -> None:
    dut = RegisterFile(CONFIG)

    async def check(ctx: Any) -> None:
        never = pauses(0)
        assert await read(ctx, dut.bus, REGISTERS["IDENTITY"].offset, never) == IDENTITY
        for item in fields(CONFIG):
            offset = REGISTERS[item.name.upper()].offset
            assert await read(ctx, dut.bus, offset, never) == getattr(CONFIG, item.name)

    simulate(dut, check)


def test_a_command_is_high_for_one_cycle_and_reads_as_zero() -> None:
    dut = RegisterFile(CONFIG)
    seen = []

    async def watch(ctx: Any) -> None:
        for _ in range(20):
            await ctx.tick()
            seen.append(ctx.get(dut.control))

    async def check(ctx: Any) -> None:
        never = pauses(0)
        await write(ctx, dut.bus, REGISTERS["CONTROL"].offset, 1, 0xF, never)
        assert await read(ctx, dut.bus, REGISTERS["CONTROL"].offset, never) == 0

    simulate(dut, watch, check)
    assert seen.count(1) == 1


def test_inputs_are_read_and_an_address_without_a_register_reads_as_zero() -> None:
    dut = RegisterFile(CONFIG)

    async def check(ctx: Any) -> None:
        never = pauses(0)
        ctx.set(dut.cycles, 0x1234_5678_9ABC_DEF0)
        cycles = REGISTERS["CYCLES"].offset
        assert await read(ctx, dut.bus, cycles, never) == 0x9ABC_DEF0
        assert await read(ctx, dut.bus, cycles + WORD_BYTES, never) == 0x1234_5678
        await write(ctx, dut.bus, cycles, 5, 0xF, never)
        assert await read(ctx, dut.bus, cycles, never) == 0x9ABC_DEF0
        await write(ctx, dut.bus, 0xFFC, 5, 0xF, never)
        assert await read(ctx, dut.bus, 0xFFC, never) == 0

    simulate(dut, check)


def test_no_two_registers_share_an_address() -> None:
    words = [
        register.offset + WORD_BYTES * number
        for register in REGISTERS.values()
        for number in range(register.width // 32)
    ]
    assert len(set(words)) == len(words)
    assert max(words) < 1 << 12
