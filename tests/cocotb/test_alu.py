"""The ALU alone under cocotb: immediates, sources with and without a copy, tables, factors, and
results of earlier micro-ops.
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
import pytest
from cocotb.triggers import RisingEdge

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.datapath.alu import AluContext, alu_operands
from amaranth_vta.hw.datapath.sequencer import IndexedUop
from amaranth_vta.hw.isa import AluOp
from amaranth_vta.hw.timing import early_end
from amaranth_vta.sim.testbench.amaranth import ReadAhead, pauses
from amaranth_vta.sim.testbench.cocotb import Tiles, high, packed, put, serve_tiles, start
from amaranth_vta.sim.testbench.cocotb_runner import simulate
from tests.support.machines import others_nightly

SIMPLE = replace(PRESETS["tiny"], lookup=1)
REQUANTIZING = replace(SIMPLE, requantize=1, multiply_add=1, overlap=1)
LANES = {
    "simple": SIMPLE,
    "requantizing": REQUANTIZING,
    "shared": replace(REQUANTIZING, log_lane_columns=1),
}
# The bench runs on one machine after the other.
CONFIG = LANES[os.environ.get("ALU_LANES", "simple")]
MICRO_OP = IndexedUop(alu_operands(CONFIG), AluContext)
# Operation, destination, source, and the immediate if it has one.
MICRO_OPS = [
    (AluOp.ADD, 3, 4, None),
    (AluOp.MUL, 3, 0, -3),
    (AluOp.SHR, 3, 0, 2),
    (AluOp.MAX, 5, 3, None),
    (AluOp.MIN, 4, 0, 100),
    # The second one reloads the table, since the first one has written to it.
    (AluOp.LOOKUP, 20, 4, None),
    (AluOp.LOOKUP, 3, 5, None),
    (AluOp.LOOKUP, 2, 5, None),
]
if CONFIG.multiply_add:
    # The immediate is the index of the factor. The second micro-op adds the first one's result, and
    # the third, in a separate instruction, multiplies by it.
    MICRO_OPS[5:5] = [
        (AluOp.MULTIPLY_ADD, 6, 5, 4),
        (AluOp.MULTIPLY_ADD, 7, 6, 4),
        (AluOp.MULTIPLY_ADD, 8, 6, 7),
        (AluOp.ADD, 9, 8, None),
    ]
if CONFIG.overlap:
    # The first source has a copy. The third micro-op reuses the second one's source. The fourth
    # one's source is prefetched while the third one reads its destination in the other bank.
    MICRO_OPS += [
        (AluOp.ADD, 10, 100, None),
        (AluOp.ADD, 11, 30, None),
        (AluOp.ADD, 70, 30, None),
        (AluOp.ADD, 12, 31, None),
    ]
OPERATIONS = {
    AluOp.ADD: np.add,
    AluOp.MUL: np.multiply,
    AluOp.SHR: np.right_shift,
    AluOp.MAX: np.maximum,
    AluOp.MIN: np.minimum,
}


async def serve_ahead(dut: Any, accumulators: Tiles) -> None:
    port = ReadAhead(accumulators)
    while True:
        await RisingEdge(dut.clk)
        asked = (dut.ahead_read_enable, dut.ahead_read_index, dut.ahead_read_keeps)
        given = port.given(*(int(signal.value) for signal in asked))
        dut.ahead_read_data.value = int.from_bytes(given.tobytes(), "little")


@cocotb.test()
@cocotb.parametrize(gaps=[0.0, 0.8])
async def operations_run_one_after_the_other(dut: Any, gaps: float) -> None:
    shape = (CONFIG.acc.depth, CONFIG.acc.rows, CONFIG.acc.columns)
    accumulators = np.random.default_rng(0).integers(-(1 << 20), 1 << 20, shape, np.int32)
    expected = accumulators.copy()
    for operation, dst, src, immediate in MICRO_OPS:
        if operation is AluOp.LOOKUP:
            table = expected[src : src + CONFIG.table_elements].reshape(-1).view(np.int8)
            expected[dst] = table[expected[dst] % 256]
            continue
        if operation is AluOp.MULTIPLY_ADD:
            expected[dst] = expected[dst] * expected[immediate] + expected[src]
            continue
        second = expected[src] if immediate is None else np.int32(immediate)
        expected[dst] = OPERATIONS[operation](expected[dst], second)

    await start(dut, "i_valid", "denied", "written", *["busy_ports"] * CONFIG.overlap)
    if CONFIG.overlap:
        # Started first: reads before the writes of the same cycle.
        cocotb.start_soon(serve_ahead(dut, accumulators))
    ports = dict.fromkeys(("dst_read", "src_read"), accumulators)
    cocotb.start_soon(serve_tiles(dut, ports, {"write": accumulators}))
    # Consecutive micro-ops with equal operation and immediate form an instruction.
    instructions = [(operation, immediate) for operation, _, _, immediate in MICRO_OPS]
    lasts = [one != other for one, other in pairwise([*instructions, None])]
    items = [
        {
            "indices": {"dst": dst, "src": src},
            "enable": 1,
            "last": last,
            "context": {
                "operation": operation,
                "use_immediate": immediate is not None and operation is not AluOp.MULTIPLY_ADD,
                "immediate": immediate or 0,
            },
        }
        for (operation, dst, src, immediate), last in zip(MICRO_OPS, lasts, strict=True)
    ]
    cocotb.start_soon(put(dut, "i", [packed(MICRO_OP, item) for item in items], pauses(gaps)))
    for _ in range(sum(lasts)):
        await high(dut, dut.done)
    for _ in range(early_end(CONFIG)):
        await RisingEdge(dut.clk)
    np.testing.assert_array_equal(accumulators, expected)


@pytest.mark.parametrize("lanes", others_nightly(LANES, lambda name: name == "requantizing"))
def test_alu_runs_under_cocotb(lanes: str, tmp_path: Path) -> None:
    from amaranth_vta.hw.datapath.alu import AluUnit
    from amaranth_vta.sim.machine.elaborate import component_verilog

    verilog = component_verilog(AluUnit(LANES[lanes]), "alu")
    simulate(verilog, __file__, tmp_path, top="alu", environment={"ALU_LANES": lanes})
