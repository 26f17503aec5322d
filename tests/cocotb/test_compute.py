"""The compute module under cocotb: micro-ops and accumulators are loaded from memory, GEMM and ALU
execute, and store reads the results.
"""

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
from amaranth_vta.hw.isa import AluOp, Memory
from amaranth_vta.sim.testbench.amaranth import checked_entry, pauses
from amaranth_vta.sim.testbench.cocotb import high, packed, put, serve_reads, serve_tiles, start
from amaranth_vta.sim.testbench.cocotb_runner import simulate

CONFIG = PRESETS["tiny"]
UOPS = [isa.Uop(dst, 2 * dst, 3 * dst) for dst in range(4)]
# Offset in memory, in elements; micro-ops are at offset 0.
ACCUMULATORS = 4
PROGRAM = [
    isa.Load(memory=Memory.UOP, x_size=4),
    isa.Load(memory=Memory.ACC, dram_base=ACCUMULATORS, x_size=4),
    isa.Gemm(uop_end=4),
    isa.Alu(uop_end=4, alu_opcode=AluOp.SHR, use_immediate=1, immediate=7),
    isa.Alu(uop_begin=1, uop_end=4, alu_opcode=AluOp.MAX, use_immediate=1),
    isa.Finish(),
]


@cocotb.test()
@cocotb.parametrize(gaps=[0.0, 0.8])
async def a_product_is_shifted_and_clipped(dut: Any, gaps: float) -> None:
    rng = np.random.default_rng(0)
    inputs, weights = (
        rng.integers(-128, 128, (memory.depth, memory.rows, memory.columns)).astype(np.int8)
        for memory in (CONFIG.inp, CONFIG.wgt)
    )
    totals = rng.integers(-5000, 5000, (4, CONFIG.acc.rows, CONFIG.acc.columns)).astype("<i4")
    instructions = isa.instruction_set(CONFIG)
    memory = np.zeros(4096, np.uint8)
    uops = np.array([instructions.encode_uop(uop) for uop in UOPS], "<u4").view(np.uint8)
    memory[: uops.size] = uops
    at = ACCUMULATORS * CONFIG.acc.element_bytes
    memory[at : at + totals.nbytes] = totals.reshape(-1).view(np.uint8)
    for uop in UOPS:
        totals[uop.dst] += inputs[uop.src].astype(np.int32) @ weights[uop.wgt].T
    totals >>= 7
    totals[1:] = np.maximum(totals[1:], 0)

    zero = ("insn_valid", "read_request_ready", "read_beat_valid", "bases", "out_read_enable")
    tokens = ("from_load_available", "from_store_available", "to_load_full", "to_store_full")
    await start(dut, *zero, *tokens)
    dut.others_retired.value = 1
    cocotb.start_soon(serve_reads(dut, memory, pauses(gaps)))
    cocotb.start_soon(serve_tiles(dut, {"inp_read": inputs, "wgt_read": weights}, {}))
    entries = [
        packed(CheckedEntry, checked_entry(CONFIG, instruction, index))
        for index, instruction in enumerate(PROGRAM)
    ]
    cocotb.start_soon(put(dut, "insn", entries, pauses(gaps)))
    await high(dut, dut.finished)
    assert dut.fault_valid.value == 0
    for element in range(4):
        got = await output(dut, element)
        np.testing.assert_array_equal(got, totals[element].astype(np.int8))


async def output(dut: Any, element: int) -> np.ndarray:
    """The low bits of an accumulator, as read by store."""
    dut.out_read_enable.value = 1
    dut.out_read_index.value = element
    for _ in range(2):
        await RisingEdge(dut.clk)
    bits = 8 * CONFIG.out.element_bytes
    word = int(dut.out_read_data.value) & (1 << bits) - 1
    raw = np.frombuffer(word.to_bytes(CONFIG.out.element_bytes, "little"), np.int8)
    return raw.reshape(CONFIG.out.rows, CONFIG.out.columns)


@pytest.mark.nightly
def test_compute_runs_under_cocotb(tmp_path: Path) -> None:
    from amaranth_vta.hw.compute import Compute
    from amaranth_vta.sim.machine.elaborate import component_verilog

    simulate(component_verilog(Compute(CONFIG), "compute"), __file__, tmp_path, top="compute")
