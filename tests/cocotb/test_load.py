"""The load module alone under cocotb: one padded LOAD of inputs, at full rate and with gaps.

Copy this file to start a bench of a single module; test_top.py is a bench of the whole machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.interfaces import CheckedEntry
from amaranth_vta.sim.testbench.amaranth import checked_entry, pauses
from amaranth_vta.sim.testbench.cocotb import high, packed, put, serve_reads, start
from amaranth_vta.sim.testbench.cocotb_runner import simulate

CONFIG = PRESETS["tiny"]
BUS_BYTES = CONFIG.bus_bytes
ELEMENT = CONFIG.inp.element_bytes
LANES = BUS_BYTES // ELEMENT  # elements that one beat writes
MEMORY = np.random.default_rng(0).integers(1, 256, 4096, np.uint8)
LOAD = isa.Load(
    memory=isa.Memory.INP,
    sram_base=3,
    dram_base=17,
    y_size=3,
    x_size=5,
    x_stride=11,
    y_pad_0=1,
    y_pad_1=2,
    x_pad_0=2,
    x_pad_1=1,
    push_next=1,
)


def expected() -> np.ndarray:
    """Expected scratchpad contents from ``sram_base`` on; shape (elements, bytes)."""
    elements = MEMORY.reshape(-1, ELEMENT)
    starts = LOAD.dram_base + LOAD.x_stride * np.arange(LOAD.y_size)
    rows = elements[starts[:, None] + np.arange(LOAD.x_size)]
    pads = ((LOAD.y_pad_0, LOAD.y_pad_1), (LOAD.x_pad_0, LOAD.x_pad_1), (0, 0))
    return np.pad(rows, pads).reshape(-1, ELEMENT)


@cocotb.test()
@cocotb.parametrize(gaps=[0.0, 0.8])
async def load_pads_all_four_sides(dut: Any, gaps: float) -> None:
    zero = ("insn_valid", "read_request_ready", "read_beat_valid", "bases")
    await start(dut, *zero, "from_compute_available", "to_compute_full")
    scratchpad = np.full((CONFIG.inp.depth, ELEMENT), 0xEE, np.uint8)
    cocotb.start_soon(serve_reads(dut, MEMORY, pauses(gaps)))
    writes = cocotb.start_soon(watch_writes(dut, scratchpad))
    await put(dut, "insn", [packed(CheckedEntry, checked_entry(CONFIG, LOAD))])
    await high(dut, dut.to_compute_give)
    await RisingEdge(dut.clk)  # the token comes with the last write
    writes.cancel()

    end = LOAD.sram_base + LOAD.elements
    np.testing.assert_array_equal(scratchpad[LOAD.sram_base : end], expected())
    assert (scratchpad[: LOAD.sram_base] == 0xEE).all()
    assert (scratchpad[end:] == 0xEE).all()


async def watch_writes(dut: Any, scratchpad: np.ndarray) -> None:
    """Record the module's writes: lane j of a write goes to element ``index`` + j."""
    while True:
        await RisingEdge(dut.clk)
        index = dut.inp_index.value.to_signed()
        data = int(dut.inp_data.value).to_bytes(BUS_BYTES, "little")
        for lane in range(LANES):
            if int(dut.inp_enable.value) >> lane & 1:
                element = data[lane * ELEMENT : (lane + 1) * ELEMENT]
                scratchpad[index + lane] = np.frombuffer(element, np.uint8)


def test_load_runs_under_cocotb(tmp_path: Path) -> None:
    from amaranth_vta.hw.load import Load
    from amaranth_vta.sim.machine.elaborate import component_verilog

    simulate(component_verilog(Load(CONFIG), "load"), __file__, tmp_path, top="load")
