"""The store module alone under cocotb: strided rows of outputs, with and without backpressure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cocotb
import numpy as np
import pytest
from cocotb.triggers import RisingEdge

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.interfaces import CheckedEntry
from amaranth_vta.sim.testbench.amaranth import checked_entry, pauses
from amaranth_vta.sim.testbench.cocotb import high, packed, put, serve_writes, start
from amaranth_vta.sim.testbench.cocotb_runner import simulate

CONFIG = PRESETS["tiny"]
ELEMENT = CONFIG.out.element_bytes
OUTPUTS = np.random.default_rng(0).integers(1, 256, (CONFIG.out.depth, ELEMENT), np.uint8)
STORE = isa.Store(sram_base=3, dram_base=17, y_size=3, x_size=5, x_stride=11, push_prev=1)


@cocotb.test()
@cocotb.parametrize(gaps=[0.0, 0.8])
async def rows_are_written_at_their_stride(dut: Any, gaps: float) -> None:
    memory = np.zeros((1024, ELEMENT), np.uint8)
    expected = memory.copy()
    for row in range(STORE.y_size):
        at = STORE.dram_base + row * STORE.x_stride
        first = STORE.sram_base + row * STORE.x_size
        expected[at : at + STORE.x_size] = OUTPUTS[first : first + STORE.x_size]

    zero = ("insn_valid", "write_request_ready", "write_beat_ready", "write_response_valid")
    await start(dut, *zero, "base", "stop", "from_compute_available", "to_compute_full")
    cocotb.start_soon(serve_outputs(dut))
    cocotb.start_soon(serve_writes(dut, memory.reshape(-1), pauses(gaps)))
    await put(dut, "insn", [packed(CheckedEntry, checked_entry(CONFIG, STORE))])
    await high(dut, dut.to_compute_give)
    np.testing.assert_array_equal(memory, expected)


async def serve_outputs(dut: Any) -> None:
    """Return as many consecutive outputs as the port is wide; the first index may be out of
    range."""
    count = len(dut.scratchpad_data) // (8 * ELEMENT)
    while True:
        await RisingEdge(dut.clk)
        if dut.scratchpad_enable.value == 1:
            places = dut.scratchpad_index.value.to_signed() + np.arange(count)
            word = OUTPUTS[places.clip(0, CONFIG.out.depth - 1)].tobytes()
            dut.scratchpad_data.value = int.from_bytes(word, "little")


@pytest.mark.nightly
def test_store_runs_under_cocotb(tmp_path: Path) -> None:
    from amaranth_vta.hw.store import Store
    from amaranth_vta.sim.machine.elaborate import component_verilog

    simulate(component_verilog(Store(CONFIG), "store"), __file__, tmp_path, top="store")
