"""The whole machine under cocotb: memory and registers by cocotbext-axi, programs from image files.

Copy this file to start a bench of your own. pytest runs the last functions, which start Verilator
or Icarus; the simulator's process then runs the functions marked with `cocotb.test`.
"""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path
from typing import Any

import cocotb
import pytest
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge, with_timeout
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiRam

from amaranth_vta.hw.registers import REGISTERS
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.testbench.cocotb_runner import simulate
from tests.support.golden import VECTORS

PROGRAMS = ["tiny-1", "tiny-2", "tiny-corners-1", "tiny-corners-2"]
CYCLE_NS = 10
TIME_LIMIT_US = 10_000


@cocotb.test()
@cocotb.parametrize(program=PROGRAMS, backpressure=[False, True])
async def run_a_program(dut: Any, program: str, backpressure: bool) -> None:
    """Afterwards memory holds what the program image expects."""
    image = ProgramImage.load(VECTORS / f"{program}.npz")
    Clock(dut.clk, CYCLE_NS, unit="ns").start()
    memory = AxiRam(AxiBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst, size=image.dram.size)
    registers = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk, dut.rst)
    if backpressure:
        read, write = memory.read_if, memory.write_if
        for number, channel in enumerate(
            (read.ar_channel, read.r_channel, write.aw_channel, write.w_channel, write.b_channel)
        ):
            channel.set_pause_generator(pauses(seed=number))
    memory.write(0, image.dram.tobytes())
    await reset(dut)

    async def write_register(name: str, value: int) -> None:
        await registers.write(
            REGISTERS[name].offset, value.to_bytes(REGISTERS[name].width // 8, "little")
        )

    await write_register("INSN_ADDR", image.insn_addr)
    await write_register("INSN_COUNT", image.insn_count)
    await write_register("INTERRUPT_ENABLE", 1)
    await write_register("CONTROL", 1)
    await with_timeout(RisingEdge(dut.irq), TIME_LIMIT_US, "us")

    status = await registers.read_dword(REGISTERS["STATUS"].offset)
    assert status == 1 << REGISTERS["STATUS"].part("done").offset
    assert image.expected is not None
    assert memory.read(0, image.dram.size) == image.expected.tobytes()


async def reset(dut: Any) -> None:
    dut.rst.value = 1
    for _ in range(4):
        await RisingEdge(dut.clk)
    dut.rst.value = 0


def pauses(seed: int) -> Any:
    """Halts a channel in half of the cycles."""
    generator = random.Random(seed)
    return (generator.random() < 0.5 for _ in itertools.count())


@pytest.fixture(scope="module")
def tiny() -> str:
    from amaranth_vta.hw.config import PRESETS
    from amaranth_vta.sim.machine.rtl.build import machine_verilog

    return machine_verilog(PRESETS["tiny"])


def test_the_machine_runs_programs_under_cocotb(tiny: str, tmp_path: Path) -> None:
    simulate(tiny, __file__, tmp_path)


@pytest.mark.skipif(shutil.which("iverilog") is None, reason="Icarus is not installed")
def test_the_machine_runs_a_program_in_icarus(tiny: str, tmp_path: Path) -> None:
    """As SystemVerilog, with four-state signals; the shortest program, since Icarus is slow."""
    only = {"COCOTB_TEST_FILTER": "program=0/backpressure=False"}
    simulate(tiny, __file__, tmp_path, simulator="icarus", environment=only)
