"""Addresses beyond DRAM are recognized by any of their bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.interfaces import address_width, within_dram


def test_each_bit_beyond_dram_is_seen() -> None:
    config = replace(PRESETS["tiny"], log_dram_size=16)
    top, address = Module(), Signal(address_width(config))
    found = Signal(config.log_dram_size + 1)
    top.d.comb += found.eq(within_dram(config, address))

    async def bench(ctx: Any) -> None:
        for value in (0, 0xFFFF, 1 << 16, 1 << 17, 3 << 16 | 0x1234):
            ctx.set(address, value)
            beyond = value >= 1 << config.log_dram_size
            assert ctx.get(found) == value % (1 << 16) | beyond << 16

    simulator = Simulator(top)
    simulator.add_testbench(bench)
    simulator.run()
