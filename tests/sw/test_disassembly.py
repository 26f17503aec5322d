from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sw.disassembly import instruction_text, listing, uop_text
from tests.support.golden import VECTORS

TINY = PRESETS["tiny"]


@pytest.mark.parametrize(
    ("instruction", "text"),
    [
        (
            isa.Load(
                memory=isa.Memory.INP,
                sram_base=4,
                dram_base=100,
                y_size=2,
                x_size=3,
                x_stride=9,
                y_pad_1=1,
                x_pad_0=1,
                pop_next=1,
                push_next=1,
            ),
            "LOAD INP[4:16], memory 2 x 3 from 100 stride 9, pad y 0 1 x 1 0"
            "; pop from compute; push to compute",
        ),
        (isa.Load(memory=isa.Memory.UOP, x_size=0), "LOAD UOP nothing"),
        (isa.Load(memory=7), "LOAD Memory 7[0:1], memory 1 x 1 from 0"),
        (
            replace(isa.set_padding(isa.Padding.LOAD, -128), push_next=1),
            "LOAD padding value -128 for WGT and INP; push to compute",
        ),
        (isa.set_padding(isa.Padding.COMPUTE, 9), "LOAD padding value 9 for ACC and ACC_8BIT"),
        (
            isa.Store(sram_base=2, dram_base=5, x_size=4, pop_prev=1),
            "STORE OUT[2:6], memory 1 x 4 from 5; pop from compute",
        ),
        (
            isa.Gemm(
                uop_begin=1,
                uop_end=3,
                iter_out=4,
                iter_in=5,
                dst_factor_out=6,
                src_factor_in=7,
                wgt_factor_out=8,
                wgt_factor_in=9,
                pop_prev=1,
                pop_next=1,
                push_prev=1,
            ),
            "GEMM uop[1:3] x 4 x 5, acc +6 +0, inp +0 +7, wgt +8 +9"
            "; pop from load and store; push to load",
        ),
        (
            isa.Forward(
                sram_base=4,
                dram_base=isa.forward_base(30, -128),
                x_size=5,
                y_size=3,
                x_stride=6,
                x_pad_0=1,
                push_prev=1,
            ),
            "STORE INP[4:22], OUT 3 x 5 from 30 stride 6, pad y 0 0 x 1 0 value -128; "
            "push to compute",
        ),
        (isa.Forward(dram_base=7, x_size=2), "STORE INP[0:2], OUT 1 x 2 from 7"),
        (isa.Forward(x_size=0), "STORE INP nothing"),
        (
            isa.Multiply(uop_end=2, independent=1),
            "MULTIPLY uop[0:2] x 1 x 1, independent",
        ),
        (
            isa.Depthwise(uop_end=2, overwrite=1, iter_in=3, src_factor_in=1),
            "DEPTHWISE overwrite uop[0:2] x 1 x 3, inp +0 +1",
        ),
        (
            isa.Alu(alu_opcode=isa.AluOp.REQUANTIZE, uop_end=2, iter_in=3, src_factor_in=3),
            "ALU REQUANTIZE uop[0:2] x 1 x 3, src +0 +3",
        ),
        (
            isa.Gemm(reset=1, uop_end=1, iter_in=5, dst_factor_in=1),
            "GEMM reset uop[0:1] x 1 x 5, acc +0 +1",
        ),
        (
            isa.Alu(alu_opcode=isa.AluOp.SHR, use_immediate=1, immediate=-3, uop_end=1),
            "ALU SHR immediate -3 uop[0:1] x 1 x 1",
        ),
        (
            isa.Alu(alu_opcode=isa.AluOp.MAX, uop_end=1, src_factor_out=2, push_next=1),
            "ALU MAX uop[0:1] x 1 x 1, src +2 +0; push to store",
        ),
        (
            isa.Alu(
                alu_opcode=isa.AluOp.MULTIPLY_ADD,
                immediate=isa.factor_immediate(40_000),
                uop_end=1,
                iter_in=4,
                dst_factor_in=1,
            ),
            "ALU MULTIPLY_ADD by acc[40000] uop[0:1] x 1 x 4, acc +0 +1",
        ),
        (isa.Finish(), "FINISH"),
        (isa.Unknown(number=6), "opcode 6, which is not in the instruction set"),
    ],
)
def test_an_instruction_reads_as_one_line(instruction: isa.Instruction, text: str) -> None:
    assert instruction_text(instruction) == text


def test_a_listing_follows_micro_ops_through_their_loads() -> None:
    instructions = isa.instruction_set(TINY)
    uops = [isa.Uop(dst, 2 * dst, 3 * dst) for dst in range(8)]
    memory = np.array([instructions.encode_uop(uop) for uop in uops], np.uint32).view(np.uint8)
    program = [
        isa.Gemm(uop_begin=4, uop_end=5),
        isa.Load(
            memory=isa.Memory.UOP,
            sram_base=3,
            dram_base=1,
            y_size=2,
            x_size=2,
            x_stride=4,
            x_pad_1=1,
        ),
        isa.Gemm(uop_begin=3, uop_end=8),
        isa.Gemm(uop_begin=4, uop_end=5, reset=1),
        isa.Alu(uop_begin=4, uop_end=5, alu_opcode=isa.AluOp.MIN),
        isa.Alu(uop_begin=4, uop_end=5, alu_opcode=isa.AluOp.MIN, use_immediate=1, immediate=-7),
    ]
    words = [instructions.encode(instruction) for instruction in program]
    lines = listing(TINY, words, lambda address, size: memory[address : address + size])
    assert [line[17:] for line in lines if line.startswith(" " * 17)] == [
        "uop[4]  not loaded by this stream",
        "uop[3]  acc[1] += inp[2] · wgt[3]",
        "uop[4]  acc[2] += inp[4] · wgt[6]",
        "uop[5]  acc[0] += inp[0] · wgt[0]",
        "uop[6]  acc[5] += inp[10] · wgt[15]",
        "uop[7]  acc[6] += inp[12] · wgt[18]",
        "uop[4]  acc[2] = 0",
        "uop[4]  acc[2] = min(acc[2], acc[4])",
        "uop[4]  acc[2] = min(acc[2], -7)",
    ]
    known = listing(TINY, words[:1], lambda *_: memory[:0], {4: instructions.encode_uop(uops[7])})
    assert list(known)[1].endswith("uop[4]  acc[7] += inp[14] · wgt[21]")


def test_a_micro_op_of_an_extension_shows_all_that_it_reads() -> None:
    config = PRESETS["tiny-extended"]
    uop = isa.Uop(2, 40)
    for operation, text in (
        (isa.AluOp.REQUANTIZE, "acc[2] = requantize(acc[2], acc[40:44])"),
        (isa.AluOp.LOOKUP, "acc[2] = lookup(acc[2], acc[40:56])"),
        (isa.AluOp.MULTIPLY_ADD, "acc[2] = acc[2] · acc[12] + acc[40]"),
    ):
        alu = isa.Alu(alu_opcode=operation, uop_end=1, immediate=12)
        assert uop_text(config, alu, uop) == text


@pytest.mark.parametrize("name", ["tiny-1", "pynq-corners-1"])
def test_a_listing_has_a_line_for_each_instruction(name: str) -> None:
    image = ProgramImage.load(VECTORS / f"{name}.npz")
    lines = list(listing(image.config, image.instruction_bits()))
    assert len(lines) == image.insn_count
    assert lines[-1].startswith(f"{image.insn_count - 1:6}  compute  FINISH")


def test_a_listing_says_why_an_instruction_is_illegal() -> None:
    encode = isa.instruction_set(TINY).encode
    words = [encode(isa.Store(y_pad_0=1)), encode(isa.Gemm(uop_end=1)) | 1 << 127]
    assert [line.partition("; ILLEGAL: ")[2] for line in listing(TINY, words)] == [
        "a store cannot have padding",
        "bit 127 is set, which no field covers",
    ]


def test_a_listing_passes_over_a_micro_op_load_that_cannot_fit() -> None:
    encode = isa.instruction_set(TINY).encode
    load = isa.Load(memory=isa.Memory.UOP, y_size=0xFFFF, x_size=0xFFFF)
    words = [encode(load), encode(isa.Gemm(uop_end=1))]
    *_, last = listing(TINY, words, lambda address, size: np.zeros(size, np.uint8))
    assert "not loaded by this stream" in last
