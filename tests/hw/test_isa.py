from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, PYNQ, Config
from amaranth_vta.hw.isa import Cause, Memory, Module, Opcode, instruction_set

# First bit and width of every field in the default configuration, counted by hand on the page of
# the instruction set.
HEAD = {
    "opcode": (0, 3),
    "pop_prev": (3, 1),
    "pop_next": (4, 1),
    "push_prev": (5, 1),
    "push_next": (6, 1),
}
MEMORY = {
    **HEAD,
    "memory": (7, 3),
    "sram_base": (10, 16),
    "dram_base": (26, 32),
    "reserved": (58, 6),
    "y_size": (64, 16),
    "x_size": (80, 16),
    "x_stride": (96, 16),
    "y_pad_0": (112, 4),
    "y_pad_1": (116, 4),
    "x_pad_0": (120, 4),
    "x_pad_1": (124, 4),
}
LOOPS = {
    **HEAD,
    "reset": (7, 1),
    "uop_begin": (8, 13),
    "uop_end": (21, 14),
    "iter_out": (35, 14),
    "iter_in": (49, 14),
    "dst_factor_out": (64, 11),  # bit 63 is left empty
    "dst_factor_in": (75, 11),
    "src_factor_out": (86, 11),
    "src_factor_in": (97, 11),
}
DEFAULT = {
    Opcode.LOAD: MEMORY,
    Opcode.STORE: MEMORY,
    Opcode.GEMM: {**LOOPS, "wgt_factor_out": (108, 10), "wgt_factor_in": (118, 10)},
    Opcode.FINISH: HEAD,
    Opcode.ALU: {
        **LOOPS,
        "alu_opcode": (108, 3),
        "use_immediate": (111, 1),
        "immediate": (112, 16),
    },
}
UOP = {"dst": (0, 11), "src": (11, 11), "wgt": (22, 10)}

configs = pytest.mark.parametrize("config", PRESETS.values(), ids=PRESETS)


def places(layout: isa.Layout) -> dict[str, tuple[int, int]]:
    return {name: (item.offset, item.width) for name, item in layout.items()}


def test_default_fields_lie_where_the_isa_page_has_them() -> None:
    instructions = instruction_set(PYNQ)
    assert {op: places(layout) for op, layout in instructions.layouts.items()} == DEFAULT
    assert places(instructions.uop_layout) == UOP


def test_opcodes_memories_and_causes_have_their_numbers() -> None:
    assert [(op.name, op.value) for op in Opcode] == [
        ("LOAD", 0), ("STORE", 1), ("GEMM", 2), ("FINISH", 3), ("ALU", 4),
        ("MULTIPLY", 5), ("DEPTHWISE", 6),
    ]  # fmt: skip
    assert [(memory.name, memory.value) for memory in Memory] == [
        ("UOP", 0), ("WGT", 1), ("INP", 2), ("ACC", 3), ("OUT", 4), ("ACC_8BIT", 5),
        ("WGT_4BIT", 9),
    ]  # fmt: skip
    assert [(op.name, op.value) for op in isa.AluOp] == [
        ("MIN", 0), ("MAX", 1), ("ADD", 2), ("SHR", 3), ("MUL", 4),
        ("REQUANTIZE", 5), ("LOOKUP", 6), ("MULTIPLY_ADD", 7),
    ]  # fmt: skip
    assert [cause.name.lower() for cause in Cause] == [
        "illegal_instruction", "index_out_of_range", "bus_error", "token_overflow", "bad_stream",
        "deadlock", "timeout",
    ]  # fmt: skip


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


def test_first_factors_move_into_word_0_where_they_fit() -> None:
    # 53 bits before them, and 4-bit factors: two fit.
    config = Config(
        log_block_in=2, log_block_out=2, log_uop_buff_size=10, log_inp_buff_size=9,
        log_wgt_buff_size=10, log_acc_buff_size=8,
    )  # fmt: skip
    for opcode in (Opcode.GEMM, Opcode.ALU):
        layout = places(instruction_set(config).layouts[opcode])
        assert layout["dst_factor_out"] == (53, 4)
        assert layout["dst_factor_in"] == (57, 4)
        assert layout["src_factor_out"][0] == 64  # the 3 bits that are left hold no factor


@configs
def test_fields_neither_overlap_nor_straddle_a_word(config: Config) -> None:
    instructions = instruction_set(config)
    for layout in instructions.layouts.values():
        end = 0
        for item in sorted(layout.values(), key=lambda item: item.offset):
            assert item.offset >= end
            end = item.offset + item.width
            assert item.offset // 64 == (end - 1) // 64
        assert end <= isa.INSTRUCTION_WIDTH


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
    return config, CLASSES[opcode](**values)


@given(encodable())
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


EXTENDED = PRESETS["pynq-extended"]


def test_an_extension_takes_the_highest_unused_bit() -> None:
    # The default encoding leaves only bit 63 unused, the tiny one the upper bits of word 1.
    for opcode in (Opcode.GEMM, Opcode.ALU, Opcode.MULTIPLY, Opcode.DEPTHWISE):
        assert instruction_set(EXTENDED).layouts[opcode]["independent"].offset == 63
        tiny = instruction_set(PRESETS["tiny-extended"]).layouts[opcode]
        assert tiny["independent"].offset == 127


def test_depthwise_overwrites_where_gemm_resets() -> None:
    layouts = instruction_set(EXTENDED).layouts
    assert layouts[Opcode.DEPTHWISE]["overwrite"].offset == layouts[Opcode.GEMM]["reset"].offset
    products = [isa.Gemm(uop_end=1), isa.Multiply(uop_end=1)]
    products += [isa.Depthwise(uop_end=1, overwrite=overwrite) for overwrite in range(2)]
    assert [product.overwrites for product in products] == [False, True, False, True]


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
