from __future__ import annotations

import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, PYNQ
from amaranth_vta.hw.isa import Memory, Opcode, instruction_set

EXTENDED = PRESETS["pynq-extended"]


@pytest.mark.parametrize(
    ("instruction", "reason"),
    [
        (isa.Unknown(number=6), "opcode 6 is not in the instruction set"),
        (isa.Load(memory=Memory.OUT), "memory 4 cannot be loaded"),
        (isa.Load(memory=6), "memory 6 cannot be loaded"),
        (isa.Load(memory=Memory.INP, reserved=2), "reserved bits are 0x2, not zero"),
        (isa.Load(memory=Memory.INP, pop_prev=1), "load has no previous neighbour"),
        (isa.Load(memory=Memory.WGT, push_prev=1), "load has no previous neighbour"),
        (isa.Store(memory=Memory.ACC), "memory 3 cannot be stored"),
        (isa.Store(reserved=1), "reserved bits are 0x1, not zero"),
        (isa.Store(pop_next=1), "store has no next neighbour"),
        (isa.Store(push_next=1), "store has no next neighbour"),
        (isa.Store(y_pad_0=1), "a store cannot have padding"),
        (isa.Store(y_pad_1=1), "a store cannot have padding"),
        (isa.Store(x_pad_0=1), "a store cannot have padding"),
        (isa.Store(x_pad_1=1), "a store cannot have padding"),
        (isa.Alu(uop_end=0, alu_opcode=5), "ALU opcode 5 is not in the instruction set"),
    ],
)
def test_an_illegal_instruction_says_why(instruction: isa.Instruction, reason: str) -> None:
    assert reason in (isa.illegal_reason(instruction) or "")


@pytest.mark.parametrize(
    "instruction",
    [
        isa.Load(memory=Memory.INP, pop_next=1, push_next=1, x_pad_0=15),
        isa.Load(memory=Memory.ACC_8BIT, pop_prev=1, pop_next=1, push_prev=1, push_next=1),
        isa.Store(pop_prev=1, push_prev=1, x_size=0, y_size=0),
        isa.Gemm(uop_begin=3, uop_end=1, iter_out=0),
        isa.Alu(uop_end=1, alu_opcode=isa.AluOp.MUL, reset=1),
        isa.Finish(pop_prev=1, pop_next=1, push_prev=1, push_next=1),
    ],
)
def test_a_legal_instruction_has_no_problem(instruction: isa.Instruction) -> None:
    assert instruction_set(PYNQ).problem(instruction_set(PYNQ).encode(instruction)) is None


def test_a_bit_that_no_field_covers_makes_gemm_and_alu_illegal() -> None:
    instructions = instruction_set(PYNQ)
    gemm = instructions.encode(isa.Gemm(uop_end=1))
    assert instructions.problem(gemm | 1 << 63) == "bit 63 is set, which no field covers"
    tiny = instruction_set(PRESETS["tiny"])
    alu = tiny.encode(isa.Alu(uop_end=1, alu_opcode=0))
    assert tiny.problem(alu | 1 << 127) == "bit 127 is set, which no field covers"


def test_bits_of_finish_beyond_its_tokens_are_ignored() -> None:
    assert instruction_set(PYNQ).problem(Opcode.FINISH | 0x5A << 7 | 1 << 127) is None


def test_a_machine_without_the_extension_refuses_its_instructions() -> None:
    extended, base = instruction_set(EXTENDED), instruction_set(PYNQ)
    for instruction, reason in (
        (isa.Multiply(uop_end=1), "opcode 5 is not in the instruction set"),
        (isa.Depthwise(uop_end=1), "opcode 6 is not in the instruction set"),
        (isa.Gemm(uop_end=1, independent=1), "bit 63 is set, which no field covers"),
        (
            isa.Alu(uop_end=1, alu_opcode=isa.AluOp.REQUANTIZE),
            "ALU opcode 5 is not in the instruction set",
        ),
        (
            isa.Alu(uop_end=1, alu_opcode=isa.AluOp.MULTIPLY_ADD),
            "ALU opcode 7 is not in the instruction set",
        ),
        (isa.set_padding(isa.Padding.LOAD, -1), "memory 6 cannot be loaded"),
        (isa.set_padding(isa.Padding.COMPUTE, 9), "memory 7 cannot be loaded"),
    ):
        bits = extended.encode(instruction)
        assert extended.problem(bits) is None
        assert base.problem(bits) == reason


def test_what_an_extension_gives_no_meaning_is_illegal() -> None:
    extended = instruction_set(EXTENDED)
    for instruction, reason in (
        (isa.Multiply(uop_end=1, reset=1), "MULTIPLY has no reset"),
        (
            isa.Alu(uop_end=1, alu_opcode=isa.AluOp.REQUANTIZE, use_immediate=1),
            "REQUANTIZE has no immediate",
        ),
        (
            isa.Alu(uop_end=1, alu_opcode=isa.AluOp.LOOKUP, use_immediate=1),
            "LOOKUP has no immediate",
        ),
        (
            isa.Alu(uop_end=1, alu_opcode=isa.AluOp.MULTIPLY_ADD, use_immediate=1),
            "MULTIPLY_ADD has no immediate",
        ),
        *(
            (
                isa.SetPadding(memory=padding, **{name: 1}),
                f"{name} is not zero in a LOAD that sets a padding value",
            )
            for padding in isa.Padding
            for name in isa.UNUSED_BY_SET_PADDING
        ),
        (isa.SetPadding(memory=6, reserved=1), "reserved bits are 0x1, not zero"),
        (
            isa.SetPadding(memory=6, pop_prev=1),
            "load has no previous neighbour to exchange tokens with",
        ),
    ):
        assert extended.problem(extended.encode(instruction)) == reason
