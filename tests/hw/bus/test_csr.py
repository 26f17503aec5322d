from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import pytest
from amaranth.hdl import Cat, ResetInserter, Signal

from amaranth_vta.hw.bus.csr import RegisterFile
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.registers import COUNTERS_OFFSET, IDENTITY, REGISTERS, WORD_BYTES, Access
from amaranth_vta.sim.testbench.amaranth import Pauses, pauses, shared, simulate

CONFIG = PRESETS["batch2"]


async def write(ctx: Any, bus: Any, address: int, data: int, strobe: int, pause: Pauses) -> None:
    """Write once: `pause` randomizes the order in which address and data are sent and the response
    accepted.
    """
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
    dut = shared(RegisterFile, CONFIG)
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


def test_words_are_as_after_power_up_until_they_are_written() -> None:
    """The memory from which they are read has no reset."""
    dut, rst = RegisterFile(CONFIG), Signal()
    words = {
        register.offset + WORD_BYTES * number: register.init >> 32 * number & 0xFFFF_FFFF
        for register in REGISTERS.values()
        if register.access is Access.READ_WRITE
        for number in range(register.width // 32)
    }
    assert words[REGISTERS["TIMEOUT"].offset] == 1 << 24

    async def check(ctx: Any) -> None:
        never = pauses(0)
        for _ in range(2):
            for word, value in words.items():
                assert await read(ctx, dut.bus, word, never) == value
                await write(ctx, dut.bus, word, 0x89AB_CDEF, 0b0110, never)
                assert await read(ctx, dut.bus, word, never) == value | 0xAB_CD00
            ctx.set(rst, 1)
            await ctx.tick()
            ctx.set(rst, 0)

    simulate(ResetInserter(rst)(dut), check)


def test_a_read_in_the_cycle_of_a_write_gives_what_is_written() -> None:
    dut = shared(RegisterFile, CONFIG)
    bus, offset = dut.bus, REGISTERS["INSN_COUNT"].offset

    async def check(ctx: Any) -> None:
        for value in (1, 2, 3):
            ctx.set(Cat(bus.awaddr, bus.wdata, bus.wstrb), offset | value << 12 | 0xF << 44)
            ctx.set(Cat(bus.awvalid, bus.wvalid, bus.bready, bus.rready), 0b1111)
            await ctx.tick()
            ctx.set(Cat(bus.awvalid, bus.wvalid), 0)
            # An accepted write takes effect in this cycle.
            assert await read(ctx, bus, offset, pauses(0)) == value

    simulate(dut, check)


def test_identity_and_every_parameter_of_the_configuration_are_readable() -> None:
    dut = shared(RegisterFile, CONFIG)

    async def check(ctx: Any) -> None:
        never = pauses(0)
        assert await read(ctx, dut.bus, REGISTERS["IDENTITY"].offset, never) == IDENTITY
        for item in fields(CONFIG):
            offset = REGISTERS[item.name.upper()].offset
            assert await read(ctx, dut.bus, offset, never) == getattr(CONFIG, item.name)

    simulate(dut, check)


def test_a_command_is_high_for_one_cycle_and_reads_as_zero() -> None:
    dut = shared(RegisterFile, CONFIG)
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
    dut = shared(RegisterFile, CONFIG)

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


@pytest.mark.parametrize("probability", [0, 0.3, 0.7])
def test_each_channel_goes_on_while_others_pause(probability: float) -> None:
    dut = shared(RegisterFile, CONFIG)
    chance = random.Random(probability)
    words = [REGISTERS[name].offset for name in ("INSN_ADDR", "UOP_BASE", "TIMEOUT")]
    writes = [(chance.choice(words), chance.getrandbits(32)) for _ in range(60)]
    constants = [item.name.upper() for item in fields(CONFIG)]
    reads = [chance.choice(constants) for _ in range(60)]
    came: list[int] = []

    async def offer(ctx: Any, channel: str, items: list[dict[str, int]]) -> None:
        """Offer the items in order, each from the next cycle on in which the channel does not
        pause.
        """
        pause, bus = pauses(probability, len(channel)), dut.bus
        for item in items:
            while pause():
                await ctx.tick()
            for name, value in item.items():
                ctx.set(getattr(bus, f"{channel}{name}"), value)
            ctx.set(getattr(bus, f"{channel}valid"), 1)
            await ctx.tick().until(getattr(bus, f"{channel}ready"))
            ctx.set(getattr(bus, f"{channel}valid"), 0)

    async def ask(ctx: Any) -> None:
        await offer(ctx, "ar", [{"addr": REGISTERS[name].offset} for name in reads])

    async def address(ctx: Any) -> None:
        await offer(ctx, "aw", [{"addr": word} for word, _ in writes])

    async def give(ctx: Any) -> None:
        await offer(ctx, "w", [{"data": value, "strb": 0xF} for _, value in writes])

    async def take(ctx: Any) -> None:
        pause, answered = pauses(probability, 5), 0
        for _ in range(3000):
            ctx.set(dut.bus.rready, not pause())
            ctx.set(dut.bus.bready, not pause())
            bus = dut.bus
            _, _, valid, ready, data, b, taken = await ctx.tick().sample(
                bus.rvalid, bus.rready, bus.rdata, bus.bvalid, bus.bready
            )
            answered += b and taken
            if valid and ready:
                came.append(data)
            if answered == len(writes) and len(came) == len(reads):
                break
        assert answered == len(writes)
        for word, value in dict(writes).items():
            name = next(name for name, register in REGISTERS.items() if register.offset == word)
            assert ctx.get(getattr(dut, name.lower())) & 0xFFFF_FFFF == value

    simulate(dut, take, ask, address, give)
    assert came == [getattr(CONFIG, name.lower()) for name in reads]


def test_a_read_of_a_counter_waits_for_the_counters_and_other_reads_do_not() -> None:
    dut = shared(RegisterFile, CONFIG)
    number, value = 3, 0x5678_9ABC_DEF0
    offset = COUNTERS_OFFSET + 2 * WORD_BYTES * number

    async def check(ctx: Any) -> None:
        never, bus = pauses(0), dut.bus
        assert await read(ctx, bus, REGISTERS["IDENTITY"].offset, never) == IDENTITY
        ctx.set(bus.araddr, offset)
        ctx.set(bus.arvalid, 1)
        await ctx.tick().until(bus.arready)
        ctx.set(bus.araddr, REGISTERS["IDENTITY"].offset)
        for _ in range(5):
            await ctx.tick()
            assert not ctx.get(bus.rvalid)
            assert not ctx.get(bus.arready)
        assert ctx.get(dut.counter_index) == number
        ctx.set(dut.counter_value, value)
        ctx.set(dut.counters_ready, 1)
        ctx.set(bus.rready, 1)
        ctx.set(bus.arvalid, 0)
        *_, low = await ctx.tick().sample(bus.rdata).until(bus.rvalid)
        assert low == value & 0xFFFF_FFFF
        assert await read(ctx, bus, offset + WORD_BYTES, never) == value >> 32

    simulate(dut, check)


@pytest.mark.parametrize("name", ["CYCLES", "ALU_BUSY"])
def test_the_high_word_of_a_count_is_of_the_moment_at_which_the_low_word_was_read(
    name: str,
) -> None:
    dut = RegisterFile(CONFIG)
    low, high = REGISTERS[name].offset, REGISTERS[name].offset + WORD_BYTES
    counter = REGISTERS["GEMM_BUSY"].offset

    async def check(ctx: Any) -> None:
        never, bus = pauses(0), dut.bus

        def count(value: int) -> None:
            for port in (dut.cycles, dut.counter_value):
                ctx.set(port, value)

        ctx.set(dut.counters_ready, 1)
        count(0x1_FFFF_FFFF)
        assert await read(ctx, bus, high, never) == 1  # nothing is latched
        assert await read(ctx, bus, low, never) == 0xFFFF_FFFF
        count(0x2_0000_0000)
        # Reads of other registers in between, as by an interrupt handler, change nothing.
        assert await read(ctx, bus, REGISTERS["STATUS"].offset, never) == 0
        assert await read(ctx, bus, counter + WORD_BYTES, never) == 2
        assert await read(ctx, bus, high, never) == 1
        # The latched word is read once, so that drivers may also read high, low, high.
        assert await read(ctx, bus, high, never) == 2
        assert await read(ctx, bus, low, never) == 0
        count(0x3_0000_0000)
        await write(ctx, bus, REGISTERS["CONTROL"].offset, 1, 0xF, never)
        assert await read(ctx, bus, high, never) == 3

    simulate(dut, check)


def test_a_bit_of_the_pending_interrupts_is_cleared_by_writing_1() -> None:
    dut = RegisterFile(CONFIG)
    seen = []

    async def watch(ctx: Any) -> None:
        for _ in range(20):
            await ctx.tick()
            seen.append(ctx.get(dut.interrupt_pending_clear))

    async def check(ctx: Any) -> None:
        never, offset = pauses(0), REGISTERS["INTERRUPT_PENDING"].offset
        ctx.set(dut.interrupt_pending, 3)
        await write(ctx, dut.bus, offset, 2, 0xF, never)
        await write(ctx, dut.bus, offset, 0xFF, 0b1110, never)
        assert await read(ctx, dut.bus, offset, never) == 3

    simulate(dut, watch, check)
    assert [mask for mask in seen if mask] == [2]


def test_no_two_registers_share_an_address() -> None:
    words = [
        register.offset + WORD_BYTES * number
        for register in REGISTERS.values()
        for number in range(register.width // 32)
    ]
    assert len(set(words)) == len(words)
    assert max(words) < 1 << 12
