from __future__ import annotations

import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.isa import Memory, Module


@pytest.mark.parametrize(
    ("instruction", "module"),
    [
        (isa.Load(memory=Memory.INP), Module.LOAD),
        (isa.Load(memory=Memory.WGT), Module.LOAD),
        (isa.Load(memory=Memory.UOP), Module.COMPUTE),
        (isa.Load(memory=Memory.ACC), Module.COMPUTE),
        (isa.Load(memory=Memory.ACC_8BIT), Module.COMPUTE),
        (isa.Load(memory=Memory.OUT), Module.COMPUTE),
        (isa.Load(memory=7), Module.COMPUTE),
        (isa.Store(), Module.STORE),
        (isa.Store(memory=Memory.INP), Module.STORE),
        (isa.Gemm(uop_end=0), Module.COMPUTE),
        (isa.Alu(uop_end=0, alu_opcode=0), Module.COMPUTE),
        (isa.Finish(), Module.COMPUTE),
        (isa.Unknown(number=5), Module.COMPUTE),
    ],
)
def test_fetch_hands_each_instruction_to_its_module(
    instruction: isa.Instruction, module: Module
) -> None:
    assert isa.module_of(instruction) is module


def test_elements_of_a_load_count_padding() -> None:
    load = isa.Load(memory=2, y_size=3, x_size=4, y_pad_0=1, y_pad_1=2, x_pad_0=5, x_pad_1=6)
    assert load.row_elements == 5 + 4 + 6
    assert load.elements == (1 + 3 + 2) * 15
    assert isa.Load(memory=2, y_size=0, x_size=4, y_pad_0=1).elements == 4
    assert isa.Load(memory=2, y_size=3, x_size=0, x_pad_0=5, y_pad_0=1).elements == 0


def test_micro_ops_of_an_instruction_count_iterations() -> None:
    assert isa.Gemm(uop_begin=2, uop_end=5, iter_out=7, iter_in=11).uops == 3 * 7 * 11
    assert isa.Gemm(uop_begin=5, uop_end=2, iter_out=7).uops == 0
    assert isa.Gemm(uop_end=2, iter_in=0).uops == 0
