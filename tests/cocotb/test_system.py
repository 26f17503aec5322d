"""Two machines on one bus under cocotb: memory and registers by cocotbext-axi."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge, with_timeout
from cocotbext.axi import AxiLiteMaster

from amaranth_vta.hw.registers import ADDRESS_WIDTH, REGISTERS
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.testbench.cocotb_runner import simulate
from tests.cocotb.test_top import TIME_LIMIT_US, connect, reset
from tests.support.golden import VECTORS

NAMES = ("tiny-1", "tiny-corners-1")
SPACING = 1 << 19  # bytes between the programs


@cocotb.test()
@cocotb.parametrize(backpressure=[False, True])
async def run_a_program_on_each_machine(dut: Any, backpressure: bool) -> None:
    """Each part of memory then equals the expectation of the image of its machine."""
    images = [ProgramImage.load(VECTORS / f"{name}.npz") for name in NAMES]
    memory, registers = connect(dut, 2 * SPACING, backpressure)
    await reset(dut)
    for number, image in enumerate(images):
        memory.write(number * SPACING, image.dram.tobytes())
        await set_up(registers, number, image)
    for number in random.Random(backpressure).sample(range(2), 2):
        await write_register(registers, number, "CONTROL", 1)
    running = {0, 1}
    while running:
        if not dut.irq.value:
            await with_timeout(RisingEdge(dut.irq), TIME_LIMIT_US, "us")
        running -= {number for number in running if await has_ended(registers, number)}
    await ClockCycles(dut.clk, 2)
    assert not dut.irq.value
    for number, image in enumerate(images):
        assert image.expected is not None
        assert memory.read(number * SPACING, image.dram.size) == image.expected.tobytes()


async def set_up(registers: AxiLiteMaster, number: int, image: ProgramImage) -> None:
    """The program is relocated by its base registers."""
    for memory in ("UOP", "WGT", "INP", "ACC", "OUT"):
        await write_register(registers, number, f"{memory}_BASE", number * SPACING)
    await write_register(registers, number, "INSN_ADDR", number * SPACING + image.insn_addr)
    await write_register(registers, number, "INSN_COUNT", image.insn_count)
    await write_register(registers, number, "INTERRUPT_ENABLE", 1)


async def has_ended(registers: AxiLiteMaster, number: int) -> bool:
    """Whether the program has ended, without a fault; clears the interrupt."""
    first = number << ADDRESS_WIDTH
    pending = first + REGISTERS["INTERRUPT_PENDING"].offset
    bits = await registers.read_dword(pending)
    await registers.write_dword(pending, bits)
    assert bits in (0, 1), "the program has failed"
    return bool(bits)


async def write_register(registers: AxiLiteMaster, number: int, name: str, value: int) -> None:
    register = REGISTERS[name]
    address = (number << ADDRESS_WIDTH) + register.offset
    await registers.write(address, value.to_bytes(register.width // 8, "little"))


@pytest.mark.nightly  # tests/sim/machine/rtl/test_system.py runs such systems without cocotb
def test_two_machines_run_programs_under_cocotb(tmp_path: Path) -> None:
    from amaranth_vta.hw.config import PRESETS
    from amaranth_vta.hw.system.parameters import SystemConfig
    from amaranth_vta.sim.machine import elaborate

    verilog = elaborate.system_verilog(SystemConfig(PRESETS["tiny"], 2))
    simulate(verilog, __file__, tmp_path)
