from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, PYNQ, Config
from amaranth_vta.hw.isa import Memory, Module, Opcode, instruction_set

EXTENDED = PRESETS["pynq-extended"]

CLASSES = {
    Opcode.LOAD: isa.Load,
    Opcode.STORE: isa.Store,
    Opcode.GEMM: isa.Gemm,
    Opcode.FINISH: isa.Finish,
    Opcode.ALU: isa.Alu,
    Opcode.MULTIPLY: isa.Multiply,
    Opcode.DEPTHWISE: isa.Depthwise,
}


@st.composite
def encodable(draw: st.DrawFn) -> tuple[Config, isa.Instruction]:
    """A configuration and a random instruction for it, with fields anywhere in their range."""
    config = draw(st.sampled_from(list(PRESETS.values())))
    opcode = draw(st.sampled_from(list(instruction_set(config).layouts)))
    values: dict[str, Any] = {}
    for name, item in instruction_set(config).layouts[opcode].items():
        if name != "opcode":
            half = 1 << item.width - 1
            low, high = (-half, half - 1) if item.signed else (0, 2 * half - 1)
            values[name] = draw(st.integers(low, high))
    if config.pad_value and opcode == Opcode.LOAD and values["memory"] in list(isa.Padding):
        return config, isa.SetPadding(**values)
    if config.forward and opcode == Opcode.STORE and values["memory"] == Memory.INP:
        return config, isa.Forward(**values)
    if config.wgt_4bit and opcode == Opcode.LOAD and values["memory"] == Memory.OUT:
        values["memory"] = Memory.WGT_4BIT
    return config, CLASSES[opcode](**values)


# Whole instructions, encoded by hand as hexadecimal words: word 1, then word 0.
@pytest.mark.parametrize(
    ("instruction", "word_1", "word_0"),
    [
        (
            isa.Load(
                memory=Memory.INP, sram_base=0x123, dram_base=0x89ABCDEF, y_size=3, x_size=0x40,
                x_stride=0x50, y_pad_0=1, y_pad_1=2, x_pad_0=3, x_pad_1=4, pop_next=1, push_next=1,
            ),
            0x4321_0050_0040_0003,
            0x89ABCDEF << 26 | 0x123 << 10 | 2 << 7 | 1 << 6 | 1 << 4,
        ),
        (isa.Store(dram_base=1, x_stride=7, push_prev=1), 0x0000_0007_0001_0001, 0x0400_0221),
        (
            isa.Gemm(
                reset=1, uop_begin=5, uop_end=9, iter_out=14, iter_in=0x3FFF,
                dst_factor_out=1, src_factor_in=0x7FF, wgt_factor_out=2, wgt_factor_in=0x3FF,
                pop_prev=1,
            ),
            0x3FF << 54 | 2 << 44 | 0x7FF << 33 | 1,
            0x3FFF << 49 | 14 << 35 | 9 << 21 | 5 << 8 | 1 << 7 | 1 << 3 | 2,
        ),
        (
            isa.Alu(uop_end=1, alu_opcode=isa.AluOp.SHR, use_immediate=1, immediate=-2),
            0xFFFE << 48 | 1 << 47 | 3 << 44,
            1 << 49 | 1 << 35 | 1 << 21 | 4,
        ),
        (isa.Finish(pop_next=1), 0, 0x13),
    ],
    ids=["LOAD", "STORE", "GEMM", "ALU", "FINISH"],
)  # fmt: skip
def test_encodings_written_out_by_hand(
    instruction: isa.Instruction, word_1: int, word_0: int
) -> None:
    bits = instruction_set(PYNQ).encode(instruction)
    assert (bits >> 64, bits & (1 << 64) - 1) == (word_1, word_0)
    assert instruction_set(PYNQ).decode(bits) == instruction


@given(encodable())
@example((EXTENDED, isa.Load(memory=Memory.WGT_4BIT)))
def test_what_is_encoded_decodes_to_the_same(case: tuple[Config, isa.Instruction]) -> None:
    config, instruction = case
    instructions = instruction_set(config)
    bits = instructions.encode(instruction)
    assert instructions.decode(bits) == instruction
    assert instructions.unused_bits(bits) == 0
    assert instructions.problem(bits) == isa.illegal_reason(instruction, config.extensions)


@given(st.sampled_from(list(PRESETS.values())), st.integers(0, (1 << 128) - 1))
def test_any_bits_decode_and_nothing_but_unused_bits_is_lost(config: Config, bits: int) -> None:
    instructions = instruction_set(config)
    instruction = instructions.decode(bits)
    if isinstance(instruction, isa.Unknown):
        assert instruction.number in (5, 6, 7)
        assert instruction.pop_prev == bits >> 3 & 1
        assert instruction.push_next == bits >> 6 & 1
    elif isinstance(instruction, isa.Finish):
        assert instructions.encode(instruction) == bits & 0x7F
    else:
        assert instructions.encode(instruction) | instructions.unused_bits(bits) == bits


@given(st.sampled_from(list(PRESETS.values())), st.data())
def test_micro_ops_decode_to_what_was_encoded(config: Config, data: st.DataObject) -> None:
    instructions = instruction_set(config)
    uop = isa.Uop(
        **{
            name: data.draw(st.integers(0, (1 << item.width) - 1))
            for name, item in instructions.uop_layout.items()
        }
    )
    assert instructions.decode_uop(instructions.encode_uop(uop)) == uop


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (isa.Load(memory=8), r"LOAD: memory = 8 is not within 0 to 7"),
        (isa.Load(memory=0, x_size=-1), r"LOAD: x_size = -1 is not within 0 to 65535"),
        (
            isa.Store(dram_base=1 << 32),
            r"STORE: dram_base = 4294967296 is not within 0 to 429496729",
        ),
        (isa.Gemm(uop_end=1 << 14), r"GEMM: uop_end = 16384 is not within 0 to 16383"),
        (
            isa.Alu(uop_end=1, alu_opcode=0, immediate=1 << 15),
            r"ALU: immediate = 32768 is not within -32768 to 32767",
        ),
        (isa.Finish(pop_prev=2), r"FINISH: pop_prev = 2 is not within 0 to 1"),
    ],
)
def test_a_value_that_its_field_cannot_hold_is_named(
    instruction: isa.Instruction, message: str
) -> None:
    with pytest.raises(isa.EncodingError, match=message):
        instruction_set(PYNQ).encode(instruction)


def test_a_micro_op_index_that_its_field_cannot_hold_is_named() -> None:
    with pytest.raises(isa.EncodingError, match=r"wgt = 1024 is not within 0 to 1023"):
        instruction_set(PYNQ).encode_uop(isa.Uop(wgt=1024))


def test_an_instruction_of_an_extension_cannot_be_encoded_without_it() -> None:
    base = instruction_set(PYNQ)
    with pytest.raises(isa.EncodingError, match="MULTIPLY is not in the instruction set of this"):
        base.encode(isa.Multiply(uop_end=1))
    with pytest.raises(isa.EncodingError, match="GEMM: independent needs extension OVERLAP"):
        base.encode(isa.Gemm(uop_end=1, independent=1))
    with pytest.raises(isa.EncodingError, match="a padding value needs extension PAD_VALUE"):
        base.encode(isa.set_padding(isa.Padding.LOAD, 1))


def test_a_store_to_inputs_is_for_machines_that_forward_results() -> None:
    forwarding, base = instruction_set(replace(PYNQ, forward=1)), instruction_set(PYNQ)
    forward = isa.Forward(dram_base=isa.forward_base(5, -7), x_size=3, y_size=2, x_pad_0=1)
    bits = forwarding.encode(forward)
    assert forwarding.decode(bits) == forward
    assert forwarding.problem(bits) is None
    assert (forward.source, forward.padding, forward.source_end) == (5, -7, 8)
    assert isa.module_of(forward) is Module.STORE
    assert base.problem(bits) == "memory 2 cannot be stored"
    with pytest.raises(isa.EncodingError, match="STORE: memory INP needs extension FORWARD"):
        base.encode(forward)
    # Other STOREs are unchanged.
    padded = forwarding.encode(isa.Store(x_pad_0=1))
    assert forwarding.problem(padded) == "a store cannot have padding"
    assert forwarding.problem(base.encode(isa.Store())) is None


def test_a_factor_is_an_immediate_without_its_sign() -> None:
    extended = instruction_set(EXTENDED)
    for factor in (0, 1, (1 << 15) - 1, 1 << 15, (1 << 16) - 1):
        immediate = isa.factor_immediate(factor)
        alu = isa.Alu(uop_end=1, alu_opcode=isa.AluOp.MULTIPLY_ADD, immediate=immediate)
        bits = extended.encode(alu)
        assert bits >> 112 == factor
        assert extended.decode(bits) == alu
        assert alu.factor == factor
        assert replace(alu, alu_opcode=isa.AluOp.ADD).factor is None


def test_a_padding_value_goes_to_the_module_whose_loads_it_pads() -> None:
    extended, base = instruction_set(EXTENDED), instruction_set(PYNQ)
    for padding, module in ((isa.Padding.LOAD, Module.LOAD), (isa.Padding.COMPUTE, Module.COMPUTE)):
        instruction = isa.set_padding(padding, -5)
        bits = extended.encode(instruction)
        # As on the page of the instruction set: memory id, and the low bits of dram_base.
        assert bits == padding << 7 | (-5 & 0xFFFFFFFF) << 26
        assert extended.decode(bits) == instruction
        assert instruction.value == -5
        assert isa.module_of(instruction) is module
        assert isa.module_of(base.decode(bits)) is Module.COMPUTE
