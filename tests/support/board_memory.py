"""A board's memory with the machine's bus and the host: `MemoryBench`."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from amaranth.hdl import Const, Module
from amaranth.lib.wiring import connect

from amaranth_vta.hw.boards.boards import BOARDS
from amaranth_vta.hw.boards.memory import OnChipMemory
from amaranth_vta.hw.boards.sdram.chip import SdramChip
from amaranth_vta.hw.boards.sdram.memory import SdramMemory
from amaranth_vta.hw.boards.sdram.simulated import SimulatedSdram
from amaranth_vta.hw.bus.axi import AXI4Signature
from amaranth_vta.sim.amaranth_internals.simulator import simulator
from tests.support.word_access import access

ON_CHIP_BYTES = 8192
CLOCK_HZ = 50_000_000
_ULX3S = BOARDS["ulx3s-sdram"].sdram
assert _ULX3S is not None
# Small, so that rows change often, with a short power-up and frequent refreshes.
CHIP = replace(_ULX3S, row_bits=11, column_bits=4, power_up_us=1, refresh_ms=2)
MEMORIES = ("on the chip", "sdram")


class MemoryBench:
    """The memory of one of `MEMORIES` on a bus of ``width`` bits.

    ``chip`` are the chip parameters that the controller assumes, ``needs`` the actual ones if they
    differ.
    """

    def __init__(
        self,
        memory: str,
        width: int = 64,
        chip: SdramChip = CHIP,
        needs: SdramChip | None = None,
    ) -> None:
        self.bytes = width // 8
        self._module = Module()
        self.chip: SimulatedSdram | None = None
        bus = AXI4Signature(width)
        self.dut: OnChipMemory | SdramMemory
        if memory == "sdram":
            self.size = chip.bytes
            self.dut = SdramMemory(chip, CLOCK_HZ, bus)
            self.chip = SimulatedSdram(needs or chip, CLOCK_HZ)
            self._module.submodules.chip = self.chip
            connect(self._module, self.dut.pins, self.chip.bus)
        else:
            self.size = ON_CHIP_BYTES
            self.dut = OnChipMemory(self.size, bus)
        self._module.submodules.dut = self.dut
        self.violations = 0
        self.cycles = 0

    def run(self, *tests: Any, expect_violations: bool = False) -> None:
        """Run ``tests`` concurrently until all have ended."""
        simulation = simulator(self._module)
        simulation.add_clock(1e-6)
        for test in tests:
            simulation.add_testbench(test)
        simulation.add_process(self._count)
        simulation.run()
        assert bool(self.violations) == expect_violations

    async def _count(self, ctx: Any) -> None:
        watched = self.chip.violations if self.chip else Const(0)
        async for _, _, self.violations in ctx.tick().sample(watched):
            self.cycles += 1

    async def write(self, ctx: Any, address: int, words: list[int], strobe: int = -1) -> int:
        axi = self.dut.axi
        ctx.set(axi.awaddr, address)
        ctx.set(axi.awlen, len(words) - 1)
        ctx.set(axi.awvalid, 1)
        await ctx.tick().until(axi.awready)
        ctx.set(axi.awvalid, 0)
        for number, word in enumerate(words):
            ctx.set(axi.wdata, word)
            ctx.set(axi.wstrb, strobe)
            ctx.set(axi.wlast, number == len(words) - 1)
            ctx.set(axi.wvalid, 1)
            await ctx.tick().until(axi.wready)
            ctx.set(axi.wvalid, 0)
        ctx.set(axi.bready, 1)
        (response,) = await ctx.tick().sample(axi.bresp).until(axi.bvalid)
        ctx.set(axi.bready, 0)
        return int(response)

    async def read(
        self, ctx: Any, address: int, beats: int, pause: float = 0
    ) -> list[tuple[int, int, int]]:
        """Data, response and last of each beat."""
        axi, chance = self.dut.axi, random.Random(1)
        found: list[tuple[int, int, int]] = []
        ctx.set(axi.araddr, address)
        ctx.set(axi.arlen, beats - 1)
        ctx.set(axi.arvalid, 1)
        await ctx.tick().until(axi.arready)
        ctx.set(axi.arvalid, 0)
        while len(found) < beats:
            ctx.set(axi.rready, chance.random() >= pause)
            _, _, valid, ready, word, response, last = await ctx.tick().sample(
                axi.rvalid, axi.rready, axi.rdata, axi.rresp, axi.rlast
            )
            if valid and ready:
                found.append((word, response, last))
        ctx.set(axi.rready, 0)
        return found

    async def host(self, ctx: Any, address: int, data: int | None = None) -> tuple[int, int]:
        """Data and error of one access of the host."""
        return await access(ctx, self.dut.host, address, data)
