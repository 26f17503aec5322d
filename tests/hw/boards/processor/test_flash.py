"""Words of a flash memory, through its pins."""

from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import connect

from amaranth_vta.hw.boards.boards import BOARDS, BoardDesign
from amaranth_vta.hw.boards.processor.flash import READ, FlashReader
from amaranth_vta.hw.boards.processor.parameters import FLASH_BASE
from amaranth_vta.hw.boards.processor.simulated_flash import SimulatedFlash
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.testbench.amaranth import simulate
from tests.support.word_access import access

SIZE = 256
DATA = random.Random(1).randbytes(SIZE)


class FlashBench(wiring.Component):
    """A reader with its chip."""

    def __init__(self) -> None:
        super().__init__({})
        self.reader, self.chip = FlashReader(), SimulatedFlash(SIZE, DATA)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.reader, m.submodules.chip = self.reader, self.chip
        connect(m, self.reader.pins, self.chip.bus)
        return m

    async def begin(self, ctx: Any, address: int) -> None:
        assert (await access(ctx, self.reader.access, FLASH_BASE, address))[1] == 0

    async def read(self, ctx: Any) -> tuple[int, int]:
        return await access(ctx, self.reader.access, FLASH_BASE)


def word(address: int) -> int:
    return int.from_bytes(DATA[address : address + 4], "little")


def test_words_follow_from_any_address() -> None:
    bench, chance = FlashBench(), random.Random(2)

    async def test(ctx: Any) -> None:
        for address in (0, 4, 129, 98):
            await bench.begin(ctx, address)
            for place in range(address, address + 40, 4):
                await ctx.tick().repeat(chance.choice((1, 5, 63, 64, 65, 66, 200)))
                assert await bench.read(ctx) == (word(place), 0)

    simulate(bench, test)


def test_the_next_word_is_prefetched() -> None:
    bench = FlashBench()

    async def test(ctx: Any) -> None:
        await bench.begin(ctx, 8)
        await ctx.tick().repeat(150)
        assert await bench.read(ctx) == (word(8), 0)
        pins = bench.reader.pins
        rises, before = 0, ctx.get(pins.clk)
        for _ in range(200):
            *_, clk = await ctx.tick().sample(pins.clk)
            rises += clk and not before
            before = clk
        # The first of the 32 pulses is over when the read is answered.
        assert rises == 31

    simulate(bench, test)


def test_a_reset_ends_the_transfer() -> None:
    bench = FlashBench()

    async def test(ctx: Any) -> None:
        await bench.begin(ctx, 8)
        await ctx.tick().repeat(50)
        ctx.set(bench.reader.rst, 1)
        await ctx.tick()
        ctx.set(bench.reader.rst, 0)
        await ctx.tick()
        assert ctx.get(bench.reader.pins.cs) == 0
        # A read without a transfer does not wait forever.
        assert (await bench.read(ctx))[1] == 1
        await bench.begin(ctx, 12)
        assert await bench.read(ctx) == (word(12), 0)

    simulate(bench, test)


@pytest.mark.parametrize("command", [0x0B, READ | 0x80])
def test_the_chip_understands_no_other_command(command: int) -> None:
    chip = SimulatedFlash(SIZE, DATA)

    async def test(ctx: Any) -> None:
        ctx.set(chip.bus.cs, 1)
        found = []
        for bit in f"{command << 24:032b}" + 8 * "0":
            ctx.set(chip.bus.copi, int(bit))
            ctx.set(chip.bus.clk, 1)
            await ctx.tick().repeat(2)
            ctx.set(chip.bus.clk, 0)
            await ctx.tick().repeat(2)
            found.append(ctx.get(chip.bus.cipo))
        assert found[32:] == 8 * [1]

    simulate(chip, test)


def test_the_pins_of_a_ulx3s_are_those_of_its_flash_memory() -> None:
    """A primitive drives the clock: its pin is none of the design's."""
    board = BOARDS["ulx3s"]
    design = BoardDesign(board, PRESETS["tiny"], board.clock_hz, bytes(8))
    files = board.platform().prepare(design, "vta").files
    constraints, netlist = str(files["vta.lpf"]), str(files["vta.il"])
    for pin in ('cs__io" SITE "R2"', 'copi__io" SITE "W2"', 'cipo__io" SITE "V2"'):
        assert f'LOCATE COMP "spi_flash_0__{pin};' in constraints
    assert netlist.count("cell \\USRMCLK ") == 1


@pytest.mark.nightly  # elaborates another board
def test_a_board_without_a_processor_does_not_read_its_flash_memory() -> None:
    board = BOARDS["ulx3s"]
    without = BoardDesign(board, PRESETS["tiny"], board.clock_hz)
    assert "USRMCLK" not in str(board.platform().prepare(without, "vta").files["vta.il"])
