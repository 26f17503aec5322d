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
from cocotb.triggers import ClockCycles, RisingEdge, with_timeout
from cocotbext.axi import (
    AxiBus,
    AxiLiteBus,
    AxiLiteMaster,
    AxiRam,
    AxiSlave,
    MemoryRegion,
)

from amaranth_vta.hw.isa import Cause, Module
from amaranth_vta.hw.registers import REGISTERS
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.testbench.cocotb_runner import simulate
from tests.support.golden import VECTORS

PROGRAMS = ["tiny-1", "tiny-corners-1"]
CYCLE_NS = 10
TIME_LIMIT_US = 10_000


@cocotb.test()
@cocotb.parametrize(program=PROGRAMS, backpressure=[False, True])
async def run_a_program(dut: Any, program: str, backpressure: bool) -> None:
    """Memory then equals the program image's expectation."""
    image = ProgramImage.load(VECTORS / f"{program}.npz")
    memory, registers = connect(dut, image.dram.size, backpressure)
    memory.write(0, image.dram.tobytes())
    await reset(dut)
    assert await status_after(dut, registers, image) == {"done"}
    assert image.expected is not None
    assert memory.read(0, image.dram.size) == image.expected.tobytes()


class UnreliableMemory(MemoryRegion):
    """Responds after random delays, so that reads and writes overtake each other, and with an error
    below address ``first``.
    """

    def __init__(self, clk: Any, image: ProgramImage, first: int) -> None:
        super().__init__(image.dram.size)
        self.mem[:] = image.dram.tobytes()
        self.first = first
        self._clk = clk
        self._chance = random.Random(first)

    async def _take_time(self, address: int) -> None:
        await ClockCycles(self._clk, self._chance.choice((1, 1, 2, 12)))
        if address < self.first:
            raise ValueError("there is no memory")

    async def _read(self, address: int, length: int, **kwargs: Any) -> bytes:
        await self._take_time(address)
        data: bytes = await super()._read(address, length, **kwargs)
        return data

    async def _write(self, address: int, data: bytes, **kwargs: Any) -> None:
        await self._take_time(address)
        await super()._write(address, data, **kwargs)


@cocotb.test()
@cocotb.parametrize(first=[0x6000, 0xC000, 0x17080])
async def meet_errors(dut: Any, first: int) -> None:
    """The machine reports the same fault as the model, and then runs the program to its end."""
    image = ProgramImage.load(VECTORS / "tiny-1.npz")
    model = FunctionalDevice(image.config, image.dram.size - first, origin=first)
    model.write(first, image.dram[first:])
    expected = model.run(image.insn_addr, image.insn_count).fault
    Clock(dut.clk, CYCLE_NS, unit="ns").start()
    memory = UnreliableMemory(dut.clk, image, first)
    AxiSlave(AxiBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst, target=memory)
    registers = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk, dut.rst)
    await reset(dut)
    assert expected is not None
    assert await status_after(dut, registers, image) == {"done", "fault"}
    report = await registers.read_dword(REGISTERS["FAULT"].offset)
    module, cause = (REGISTERS["FAULT"].part(name) for name in ("module", "cause"))
    assert Module(report >> module.offset & 3).name.lower() == expected.module
    assert Cause(report >> cause.offset & 7).name.lower() == expected.cause == "bus_error"
    assert await registers.read_dword(REGISTERS["FAULT_INSN"].offset) == expected.instruction
    memory.first = 0
    memory.mem[:] = image.dram.tobytes()
    assert await status_after(dut, registers, image) == {"done"}
    assert image.expected is not None
    assert bytes(memory.mem[:]) == image.expected.tobytes()


def connect(dut: Any, memory_bytes: int, backpressure: bool) -> tuple[AxiRam, AxiLiteMaster]:
    """Start the clock; return the machine's memory, which may stall, and its registers."""
    Clock(dut.clk, CYCLE_NS, unit="ns").start()
    memory = AxiRam(AxiBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst, size=memory_bytes)
    registers = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk, dut.rst)
    if backpressure:
        read, write = memory.read_if, memory.write_if
        for number, channel in enumerate(
            (read.ar_channel, read.r_channel, write.aw_channel, write.w_channel, write.b_channel)
        ):
            channel.set_pause_generator(pauses(seed=number))
    return memory, registers


async def status_after(dut: Any, registers: AxiLiteMaster, image: ProgramImage) -> set[str]:
    """Run the program; return the names of the STATUS bits that are set at its end."""
    for name, value in (
        ("INSN_ADDR", image.insn_addr),
        ("INSN_COUNT", image.insn_count),
        ("CONTROL", 1),
        ("INTERRUPT_ENABLE", 1),
    ):
        register = REGISTERS[name]
        await registers.write(register.offset, value.to_bytes(register.width // 8, "little"))
    if not dut.irq.value:
        await with_timeout(RisingEdge(dut.irq), TIME_LIMIT_US, "us")
    status = await registers.read_dword(REGISTERS["STATUS"].offset)
    pending = REGISTERS["INTERRUPT_PENDING"].offset
    await registers.write(pending, await registers.read(pending, 4))
    await RisingEdge(dut.clk)
    assert not dut.irq.value
    return {part.name for part in REGISTERS["STATUS"].bits if status >> part.offset & 1}


async def reset(dut: Any) -> None:
    dut.rst.value = 1
    for _ in range(4):
        await RisingEdge(dut.clk)
    dut.rst.value = 0


def pauses(seed: int) -> Any:
    """Stalls a channel in half of the cycles."""
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
