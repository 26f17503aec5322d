"""SDRAM as a board's memory: timing constraints and throughput."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from amaranth_vta.hw.boards.boards import BOARDS, BoardDesign
from amaranth_vta.hw.boards.sdram.chip import SdramChip
from amaranth_vta.hw.boards.sdram.controller import SdramController
from amaranth_vta.hw.config import PRESETS
from tests.support.board_memory import CHIP, CLOCK_HZ, MemoryBench

CYCLE = 1e9 / CLOCK_HZ


def _random_traffic(bench: MemoryBench, seed: int) -> list[Any]:
    """A machine that reads and writes, and a host, each in its own part of memory."""
    half = bench.size // 2

    async def machine(ctx: Any) -> None:
        chance = random.Random(seed)
        ctx.set(bench.dut.limit, bench.size)
        kept: dict[int, int] = {}
        for _ in range(40):
            beats = chance.choice((1, 2, 3, 16))
            address = chance.randrange(0, half, 8 * 64) + 8 * chance.randrange(16)
            places = range(address, address + 8 * beats, 8)
            if chance.random() < 0.5:
                words = [chance.getrandbits(64) for _ in places]
                await bench.write(ctx, address, words)
                kept.update(zip(places, words, strict=True))
            else:
                found = await bench.read(ctx, address, beats, chance.choice((0, 0.7)))
                for place, (word, _, _) in zip(places, found, strict=True):
                    assert word == kept.get(place, word)

    async def host(ctx: Any) -> None:
        chance = random.Random(seed + 1)
        for _ in range(40):
            address, word = half + 4 * chance.randrange(half // 4), chance.getrandbits(32)
            await bench.host(ctx, address, word)
            assert await bench.host(ctx, address) == (word, 0)

    return [machine, host]


@pytest.mark.parametrize("seed", range(4))
def test_random_traffic_keeps_the_times_of_the_chip(seed: int) -> None:
    bench = MemoryBench("sdram")
    bench.run(*_random_traffic(bench, seed))


@pytest.mark.parametrize(
    "needs",
    [
        replace(CHIP, rcd=CHIP.rcd + CYCLE),
        # A row that is read is open for longer than this.
        replace(CHIP, ras=CHIP.ras + 20 * CYCLE),
        replace(CHIP, rp=CHIP.rp + CYCLE),
        replace(CHIP, rfc=CHIP.rfc + CYCLE),
        replace(CHIP, wr=CHIP.wr + 1),
        replace(CHIP, mrd=CHIP.mrd + 1),
        replace(CHIP, power_up_us=CHIP.power_up_us + 3 * CYCLE / 1e3),
        replace(CHIP, refresh_ms=CHIP.refresh_ms / 2),
    ],
)
def test_a_chip_that_needs_a_cycle_more_notices(needs: SdramChip) -> None:
    """Shows that no wait of the controller is superfluous, and that the test above can fail.

    The power-up time is longer by two cycles, since commands reach the pins that much later.
    """
    bench = MemoryBench("sdram", needs=needs)

    async def test(ctx: Any) -> None:
        ctx.set(bench.dut.limit, bench.size)
        for at in (0, bench.size // 2):
            await bench.write(ctx, at, [1, 2])
            # Other rows of the same bank.
            await bench.read(ctx, at + bench.size // 4, 1)
            await bench.read(ctx, at, 1)
        for _ in range(60 if needs.refresh_ms < CHIP.refresh_ms else 0):
            await bench.read(ctx, 0, 16)

    bench.run(test, expect_violations=True)


def test_beats_of_an_open_row_follow_each_other_without_a_gap() -> None:
    bench, beats = MemoryBench("sdram", chip=replace(CHIP, column_bits=6, refresh_ms=64)), 16
    taken: list[int] = []

    async def test(ctx: Any) -> None:
        ctx.set(bench.dut.limit, bench.size)
        await bench.read(ctx, 0, 1)
        begins = bench.cycles
        await bench.read(ctx, 0, beats)
        taken.append(bench.cycles - begins)

    bench.run(test)
    assert taken == [4 * beats + 8]


def test_a_bus_that_is_wider_than_a_burst_is_refused() -> None:
    with pytest.raises(ValueError, match="256 bits: an SDRAM of 16 bits has bursts of 16, 32, 64,"):
        SdramController(CHIP, CLOCK_HZ, 256)


def test_the_registers_of_the_pins_and_the_clock_of_the_chip_are_in_their_cells() -> None:
    board = BOARDS["ulx3s-sdram"]
    design = BoardDesign(board, PRESETS["tiny"], board.clock_hz)
    files = board.platform().prepare(design, "vta").files
    constraints, netlist = str(files["vta.lpf"]), str(files["vta.il"])
    for pin in ('"sdram_0__clk__io" SITE "F19"', '"sdram_0__dq__io[15]" SITE "J17"'):
        assert f"LOCATE COMP {pin};" in constraints
    cells = Counter(re.findall(r"^ *cell \\(\w+) ", netlist, re.MULTILINE))
    # Output registers for 5 command bits with clock enable and chip select, 2 bank and 13 row bits,
    # 2 masks and 16 data bits, each with a register for its output enable; and one for the clock.
    assert cells["OFS1P3DX"] == 2 * (5 + 2 + 13 + 2 + 16) + 1
    assert cells["IFS1P3DX"] == 16
    assert cells["ODDRX1F"] == 1
    # Phases in units of the PLL's oscillator, 8 to a cycle: the chip's clock lags by 2.
    phases = dict(re.findall(r"parameter \\(CLKO[PS]_CPHASE) (\S+)", netlist))
    assert phases == {"CLKOP_CPHASE": "7", "CLKOS_CPHASE": "9"}
