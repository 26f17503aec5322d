"""The forwarder alone under cocotb: rows of results become inputs, surrounded by padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cocotb
import numpy as np
import pytest
from cocotb.triggers import RisingEdge

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.dma.transfer import transfer_layout
from amaranth_vta.hw.isa import Forward, forward_base
from amaranth_vta.sim.testbench.amaranth import Pauses, pauses, transfer_command
from amaranth_vta.sim.testbench.cocotb import packed, put, serve_tiles, start
from amaranth_vta.sim.testbench.cocotb_runner import simulate

CONFIG = PRESETS["tiny-extended"]
RESULTS = np.random.default_rng(0).integers(
    -128, 128, (CONFIG.out.depth, CONFIG.out.rows, CONFIG.out.columns), np.int8
)
FORWARD = Forward(
    sram_base=2,
    dram_base=forward_base(3, -5),
    y_size=2,
    x_size=3,
    x_stride=5,
    y_pad_0=1,
    x_pad_1=1,
)


@cocotb.test()
@cocotb.parametrize(gaps=[0.0, 0.8])
async def rows_become_inputs(dut: Any, gaps: float) -> None:
    inputs = np.zeros((CONFIG.inp.depth, CONFIG.inp.rows, CONFIG.inp.columns), np.int8)
    expected = inputs.copy()
    # A row of padding above, an element of padding on the right; all other inputs stay unchanged.
    places = expected[FORWARD.sram_base :][: FORWARD.elements].reshape(3, 4, *expected.shape[1:])
    places[:] = FORWARD.padding
    for row in range(FORWARD.y_size):
        places[1 + row, :3] = RESULTS[FORWARD.source + row * FORWARD.x_stride :][:3]

    await start(dut, "command_valid", "hold")
    cocotb.start_soon(serve_tiles(dut, {"scratchpad": RESULTS}, {}))
    command = packed(transfer_layout(CONFIG), transfer_command(FORWARD))
    cocotb.start_soon(put(dut, "command", [command, command]))
    done_after, writes = await take_writes(dut, inputs, pauses(gaps))
    np.testing.assert_array_equal(inputs, expected)
    assert done_after == [FORWARD.elements, 2 * FORWARD.elements]
    assert writes == done_after[-1]


async def take_writes(dut: Any, inputs: Any, pause: Pauses) -> tuple[list[int], int]:
    """Hold writes in cycles of ``pause``; in other cycles store the port's data as inputs.

    Returns the number of writes at each completed command, and their total.
    """
    done_after, writes = [], 0
    for _ in range(200):
        await RisingEdge(dut.clk)
        if dut.inp_enable.value == 1 and dut.hold.value == 0:
            bits = int(dut.inp_data.value).to_bytes(inputs[0].nbytes, "little")
            index = int(dut.inp_index.value)
            inputs[index] = np.frombuffer(bits, np.int8).reshape(inputs[0].shape)
            writes += 1
        if dut.done.value == 1:
            done_after.append(writes)
        dut.hold.value = int(pause())
    return done_after, writes


@pytest.mark.nightly
def test_the_forwarder_runs_under_cocotb(tmp_path: Path) -> None:
    from amaranth_vta.hw.dma.forwarder import Forwarder
    from amaranth_vta.sim.machine.elaborate import component_verilog

    simulate(component_verilog(Forwarder(CONFIG), "forwarder"), __file__, tmp_path, top="forwarder")
