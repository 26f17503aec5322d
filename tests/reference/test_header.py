"""The C header, read by a C compiler, agrees with the encoder in Python."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from amaranth_vta import cli
from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.registers import REGISTERS
from amaranth_vta.reference.header import header
from amaranth_vta.sim.toolchain import compiler


def run_c(text: str, body: str, folder: Path) -> list[int]:
    """The numbers printed by a program with ``body`` and the header ``text``."""
    (folder / "vta.h").write_text(text)
    source = f'#include "vta.h"\n#include <stdio.h>\nint main(void) {{ {body} return 0; }}\n'
    (folder / "main.c").write_text(source)
    program = folder / "main"
    command = [*compiler(), "-x", "c", "-std=c99", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, "-o", program, folder / "main.c"], check=True, cwd=folder)
    out = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return [int(line) for line in out.split()]


@pytest.mark.parametrize("name", ["pynq-extended", "tiny"])
def test_an_instruction_put_together_in_c_is_that_of_the_encoder(name: str, tmp_path: Path) -> None:
    config = PRESETS[name]
    instructions = isa.instruction_set(config)
    values = {"uop_end": 3, "iter_out": 5, "iter_in": 7, "pop_prev": 1, "use_immediate": 1}
    alu = isa.Alu(alu_opcode=isa.AluOp.SHR, immediate=-9, dst_factor_in=1, **values)
    puts = {**values, "opcode": "VTA_OPCODE_ALU", "alu_opcode": "VTA_ALU_SHR", "immediate": -9}
    puts["dst_factor_in"] = 1
    body = "uint64_t i[2] = {0, 0};"
    for field, value in puts.items():
        place = f"VTA_ALU_{field.upper()}"
        body += f"vta_put(i, {place}_SHIFT, {place}_WIDTH, {value});"
    body += r'printf("%llu %llu", (unsigned long long)i[0], (unsigned long long)i[1]);'
    low, high = run_c(header(config), body, tmp_path)
    assert low | high << 64 == instructions.encode(alu)


def test_registers_and_parameters_are_those_of_the_machine(tmp_path: Path) -> None:
    config = PRESETS["pynq"]
    names = list(REGISTERS)
    body = "".join(f'printf("%d ", VTA_REG_{name});' for name in names)
    body += r'printf("%d %d %d", VTA_LOG_BLOCK_IN, VTA_WGT_ELEMENT_BYTES, VTA_STATUS_FAULT_SHIFT);'
    values = run_c(header(config), body, tmp_path)
    assert values[: len(names)] == [REGISTERS[name].offset for name in names]
    assert values[len(names) :] == [config.log_block_in, 256, 2]


def test_the_command_writes_the_header(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["header", "--config", "tiny"]) == 0
    assert capsys.readouterr().out == header(PRESETS["tiny"])
    assert cli.invoke(["header", "--config", "tiny", "-o", str(tmp_path / "vta.h")]) == 0
    assert (tmp_path / "vta.h").read_text() == header(PRESETS["tiny"])
    assert os.listdir(tmp_path) == ["vta.h"]
