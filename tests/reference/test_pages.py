"""The generated pages are complete, and are those in docs/."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.registers import REGISTERS
from amaranth_vta.reference import semantics
from amaranth_vta.reference.__main__ import pages

DOCS = Path(__file__).parents[2] / "docs"
EXTENDED = PRESETS["pynq-extended"]


@pytest.mark.parametrize("name", pages())
def test_pages_are_current(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == pages()[name], "run `make docs`"


def test_every_number_has_words() -> None:
    assert list(semantics.INSTRUCTIONS) == list(isa.Opcode)
    assert list(semantics.MEMORIES) == [*isa.Memory, *isa.Padding]
    assert list(semantics.ALU_OPS) == list(isa.AluOp)
    assert list(semantics.MODULES) == list(isa.Module)
    assert list(semantics.CAUSES) == list(isa.Cause)
    extensions = {item.name for item in fields(Config) if item.metadata.get("extension")}
    assert set(semantics.EXTENSIONS) == extensions


def test_every_field_has_words_and_no_words_are_left_over() -> None:
    instructions = isa.instruction_set(EXTENDED)
    layouts = [*instructions.layouts.values(), instructions.uop_layout]
    assert {name for layout in layouts for name in layout} == set(semantics.FIELDS)


def test_pages_have_every_register_and_instruction_with_its_place() -> None:
    registers = pages()["registers.md"]
    for register in REGISTERS.values():
        assert f"| `{register.offset:#05x}` | `{register.name}" in registers or (
            f"| `{register.offset:#05x}` | `{register.name.lower()}" in registers
        )
    text = pages()["isa.md"]
    assert "| `imm" in text
    for opcode in isa.Opcode:
        assert f"## {opcode.name}: opcode {opcode.value}" in text
    gemm = isa.instruction_set(PRESETS["pynq"]).layouts[isa.Opcode.GEMM]["wgt_factor_in"]
    assert f"| `wgt_factor_in` | {gemm.offset + gemm.width - 1}:{gemm.offset} |" in text
    assert "Only with OVERWRITE." in text
