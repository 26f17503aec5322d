"""The SoC of examples/litex_soc.py: a host on its bus writes a program, runs it, and reads
results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge, with_timeout
from cocotbext.axi import AxiLiteBus, AxiLiteMaster

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import Finish, Gemm, Load, Memory, Store, Uop, instruction_set
from amaranth_vta.hw.registers import REGISTERS
from amaranth_vta.sim.testbench.cocotb_runner import simulate

TINY = PRESETS["tiny"]
# Byte addresses in memory: the stream is at 0, its data follow.
UOP, WEIGHTS, IMAGES, RESULT = 0x100, 0x140, 0x180, 0x200
PIXELS = 16
CYCLE_NS = 10
TIME_LIMIT_US = 1_000
# Warnings accepted for LiteX: its style of combinational logic, and loops in its interconnect.
ACCEPTED = "/* verilator lint_off COMBDLY */\n/* verilator lint_off UNOPTFLAT */\n"
BASES = ("UOP_BASE", "INP_BASE", "WGT_BASE", "ACC_BASE", "OUT_BASE")


def program(weights: np.ndarray, images: np.ndarray) -> bytes:
    """Memory contents with a stream that multiplies ``images`` by ``weights`` and stores to
    `RESULT`.
    """
    instructions = instruction_set(TINY)
    stream = (
        Load(memory=Memory.UOP, dram_base=UOP // 4, x_size=1),
        Load(memory=Memory.WGT, dram_base=WEIGHTS // weights.size, x_size=1),
        Load(memory=Memory.INP, dram_base=IMAGES // 4, x_size=len(images), push_next=1),
        Gemm(reset=1, uop_end=1, iter_in=len(images), dst_factor_in=1, pop_prev=1),
        Gemm(uop_end=1, iter_in=len(images), dst_factor_in=1, src_factor_in=1, push_next=1),
        Store(dram_base=RESULT // 4, x_size=len(images), pop_prev=1, push_prev=1),
        Finish(pop_next=1),
    )
    memory = bytearray(RESULT)
    memory[: 16 * len(stream)] = b"".join(
        instructions.encode(instruction).to_bytes(16, "little") for instruction in stream
    )
    memory[UOP : UOP + 4] = instructions.encode_uop(Uop()).to_bytes(4, "little")
    memory[WEIGHTS : WEIGHTS + weights.size] = weights.tobytes()
    memory[IMAGES : IMAGES + images.size] = images.tobytes()
    return bytes(memory)


@cocotb.test()
async def multiply(dut: Any) -> None:
    # A late import, since importing LiteX would delay test collection by seconds.
    from examples.litex_soc import MEMORY
    from examples.litex_soc import REGISTERS as ADDRESS_OF_REGISTERS

    chance = np.random.default_rng(0)
    weights = chance.integers(-8, 8, (4, 4), np.int8)
    images = chance.integers(-2, 3, (PIXELS, 4), np.int8)
    Clock(dut.clk, CYCLE_NS, unit="ns").start()
    host = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "host"), dut.clk, dut.rst)
    dut.rst.value = 1
    for _ in range(4):
        await RisingEdge(dut.clk)
    dut.rst.value = 0

    async def write_register(name: str, value: int) -> None:
        register = REGISTERS[name]
        data = value.to_bytes(register.width // 8, "little")
        await host.write(ADDRESS_OF_REGISTERS + register.offset, data)

    await with_timeout(host.write(MEMORY, program(weights, images)), TIME_LIMIT_US, "us")
    for name in BASES:
        await write_register(name, MEMORY)
    await write_register("INSN_ADDR", MEMORY)
    await write_register("INSN_COUNT", 7)
    await write_register("INTERRUPT_ENABLE", 1)
    await write_register("CONTROL", 1)
    await with_timeout(RisingEdge(dut.irq), TIME_LIMIT_US, "us")

    status = await host.read_dword(ADDRESS_OF_REGISTERS + REGISTERS["STATUS"].offset)
    assert status == 1 << REGISTERS["STATUS"].part("done").offset
    result = await host.read(MEMORY + RESULT, 4 * PIXELS)
    assert np.array_equal(
        np.frombuffer(result.data, np.int8).reshape(PIXELS, 4), images @ weights.T
    )


def test_the_machine_runs_a_program_in_a_litex_soc(tmp_path: Path) -> None:
    from examples.litex_soc import soc_verilog

    simulate(ACCEPTED + soc_verilog(TINY), __file__, tmp_path, top="soc")
