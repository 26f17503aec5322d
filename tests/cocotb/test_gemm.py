"""The GEMM unit alone under cocotb: micro-ops that multiply, accumulate and reset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cocotb
import numpy as np

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.datapath.gemm import GemmContext, gemm_operands
from amaranth_vta.hw.datapath.sequencer import IndexedUop
from amaranth_vta.sim.testbench.amaranth import pauses
from amaranth_vta.sim.testbench.cocotb import high, packed, put, serve_tiles, start
from amaranth_vta.sim.testbench.cocotb_runner import simulate

CONFIG = PRESETS["tiny"]
MICRO_OP = IndexedUop(gemm_operands(CONFIG), GemmContext(CONFIG))
# Destination, source, weights; the last micro-op clears its accumulators.
MICRO_OPS = [(5, 0, 3), (5, 1, 2), (6, 1, 3), (5, 2, 1), (6, 0, 0), (7, 9, 9)]


@cocotb.test()
@cocotb.parametrize(gaps=[0.0, 0.8])
async def products_add_up(dut: Any, gaps: float) -> None:
    rng = np.random.default_rng(0)
    tiles = {
        name: rng.integers(-128, 128, (memory.depth, memory.rows, memory.columns)).astype(dtype)
        for name, memory, dtype in (
            ("inp", CONFIG.inp, np.int8),
            ("wgt", CONFIG.wgt, np.int8),
            ("acc_read", CONFIG.acc, np.int32),
        )
    }
    accumulators = tiles["acc_read"]
    expected = accumulators.copy()
    for dst, src, wgt in MICRO_OPS[:-1]:
        expected[dst] += tiles["inp"][src].astype(np.int32) @ tiles["wgt"][wgt].T
    expected[MICRO_OPS[-1][0]] = 0

    await start(dut, "i_valid", "denied")
    cocotb.start_soon(serve_tiles(dut, tiles, {"acc_write": accumulators}, ["acc_read"]))
    items = [
        {
            "indices": {"dst": dst, "src": src, "wgt": wgt},
            "enable": 1,
            "last": last,
            "context": {"reset": last},
        }
        for (dst, src, wgt), last in zip(MICRO_OPS, [0, 0, 0, 0, 0, 1], strict=True)
    ]
    cocotb.start_soon(put(dut, "i", [packed(MICRO_OP, item) for item in items], pauses(gaps)))
    await high(dut, dut.done)
    np.testing.assert_array_equal(accumulators, expected)


def test_gemm_runs_under_cocotb(tmp_path: Path) -> None:
    from amaranth_vta.hw.datapath.gemm import GemmUnit
    from amaranth_vta.sim.machine.elaborate import component_verilog

    simulate(component_verilog(GemmUnit(CONFIG), "gemm"), __file__, tmp_path, top="gemm")
