"""The fetch module alone under cocotb: each instruction is dispatched to its module, in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cocotb
import numpy as np
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.interfaces import QueueEntry
from amaranth_vta.hw.isa import Memory, Module
from amaranth_vta.sim.testbench.amaranth import pauses
from amaranth_vta.sim.testbench.cocotb import get, high, serve_reads, start, unpacked
from amaranth_vta.sim.testbench.cocotb_runner import simulate

CONFIG = PRESETS["tiny"]
ADDRESS = 0x1F0
PROGRAM = [
    *[
        isa.Load(memory=Memory.INP, x_size=3),
        isa.Load(memory=Memory.UOP),
        isa.Store(push_prev=1),
        isa.Gemm(uop_end=4),
        isa.Load(memory=Memory.WGT, pop_next=1),
    ]
    * 8,
    isa.Finish(),
]


@cocotb.test()
@cocotb.parametrize(gaps=[0.0, 0.8])
async def instructions_go_to_their_modules(dut: Any, gaps: float) -> None:
    encode = isa.instruction_set(CONFIG).encode
    words = [encode(instruction) for instruction in PROGRAM]
    expected: dict[Module, list[tuple[int, int]]] = {
        module: [] for module in (Module.LOAD, Module.COMPUTE, Module.STORE)
    }
    for index, (instruction, bits) in enumerate(zip(PROGRAM, words, strict=True)):
        expected[isa.module_of(instruction)].append((index, bits))
    memory = np.zeros(4096, np.uint8)
    program = b"".join(bits.to_bytes(16, "little") for bits in words)
    memory[ADDRESS : ADDRESS + len(program)] = np.frombuffer(program, np.uint8)

    zero = ("start", "read_request_ready", "read_beat_valid")
    await start(dut, *zero, "load_ready", "compute_ready", "store_ready")
    cocotb.start_soon(serve_reads(dut, memory, pauses(gaps)))
    handed: dict[Module, list[tuple[int, int]]] = {module: [] for module in expected}
    for module in handed:
        cocotb.start_soon(take(dut, module.name.lower(), handed[module], gaps))
    dut.insn_addr.value, dut.insn_count.value = ADDRESS, len(PROGRAM)
    dut.start.value = 1
    await high(dut, dut.clk)
    dut.start.value = 0
    await high(dut, dut.quiet)
    assert dut.fault_valid.value == 0
    assert handed == expected


async def take(dut: Any, queue: str, taken: list[tuple[int, int]], gaps: float) -> None:
    """Pop ``queue``: index and bits of each instruction."""
    pause = pauses(gaps, len(queue))
    while True:
        entry = unpacked(QueueEntry, await get(dut, queue, pause))
        taken.append((entry["index"], entry["bits"]))


@pytest.mark.nightly
def test_fetch_runs_under_cocotb(tmp_path: Path) -> None:
    from amaranth_vta.hw.fetch import Fetch
    from amaranth_vta.sim.machine.elaborate import component_verilog

    simulate(component_verilog(Fetch(CONFIG), "fetch"), __file__, tmp_path, top="fetch")
