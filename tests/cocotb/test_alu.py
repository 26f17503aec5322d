"""The ALU alone under cocotb: immediates, registers, tables, and results of earlier micro-ops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import cocotb
import numpy as np

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.datapath.alu import AluContext, alu_operands
from amaranth_vta.hw.datapath.sequencer import IndexedUop
from amaranth_vta.hw.isa import AluOp
from amaranth_vta.sim.testbench.amaranth import pauses
from amaranth_vta.sim.testbench.cocotb import high, packed, put, serve_tiles, start
from amaranth_vta.sim.testbench.cocotb_runner import simulate

CONFIG = replace(PRESETS["tiny"], lookup=1)
MICRO_OP = IndexedUop(alu_operands(CONFIG), AluContext)
# Operation, destination, source or immediate, and whether it is an immediate.
MICRO_OPS = [
    (AluOp.ADD, 3, 4, 0),
    (AluOp.MUL, 3, -3, 1),
    (AluOp.SHR, 3, 2, 1),
    (AluOp.MAX, 5, 3, 0),
    (AluOp.MIN, 4, 100, 1),
    # The second reads the table again, since the first has written to it.
    (AluOp.LOOKUP, 20, 4, 0),
    (AluOp.LOOKUP, 3, 5, 0),
    (AluOp.LOOKUP, 2, 5, 0),
]
OPERATIONS = {
    AluOp.ADD: np.add,
    AluOp.MUL: np.multiply,
    AluOp.SHR: np.right_shift,
    AluOp.MAX: np.maximum,
    AluOp.MIN: np.minimum,
}


@cocotb.test()
@cocotb.parametrize(gaps=[0.0, 0.8])
async def operations_run_one_after_the_other(dut: Any, gaps: float) -> None:
    shape = (CONFIG.acc.depth, CONFIG.acc.rows, CONFIG.acc.columns)
    accumulators = np.random.default_rng(0).integers(-(1 << 20), 1 << 20, shape, np.int32)
    expected = accumulators.copy()
    for operation, dst, operand, immediate in MICRO_OPS:
        if operation is AluOp.LOOKUP:
            table = expected[operand : operand + CONFIG.table_elements].reshape(-1).view(np.int8)
            expected[dst] = table[expected[dst] % 256]
            continue
        second = np.int32(operand) if immediate else expected[operand]
        expected[dst] = OPERATIONS[operation](expected[dst], second)

    await start(dut, "i_valid", "denied", "written")
    ports = dict.fromkeys(("dst_read", "src_read"), accumulators)
    cocotb.start_soon(serve_tiles(dut, ports, {"write": accumulators}))
    items = [
        {
            "indices": {"dst": dst, "src": 0 if immediate else operand},
            "enable": 1,
            "last": number == len(MICRO_OPS) - 1,
            "context": {
                "operation": operation,
                "use_immediate": immediate,
                "immediate": operand if immediate else 0,
            },
        }
        for number, (operation, dst, operand, immediate) in enumerate(MICRO_OPS)
    ]
    cocotb.start_soon(put(dut, "i", [packed(MICRO_OP, item) for item in items], pauses(gaps)))
    await high(dut, dut.done)
    np.testing.assert_array_equal(accumulators, expected)


def test_alu_runs_under_cocotb(tmp_path: Path) -> None:
    from amaranth_vta.hw.datapath.alu import AluUnit
    from amaranth_vta.sim.machine.elaborate import component_verilog

    simulate(component_verilog(AluUnit(CONFIG), "alu"), __file__, tmp_path, top="alu")
