from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, PYNQ
from amaranth_vta.sw.runtime.instruction_words import instruction_words
from amaranth_vta.sw.runtime.work import Work, work


def work_of(*instructions: isa.Instruction) -> Work:
    encode = isa.instruction_set(PYNQ).encode
    return work(PYNQ, instruction_words(encode(instruction) for instruction in instructions))


def test_a_load_counts_what_crosses_the_bus_without_its_padding() -> None:
    load = isa.Load(memory=isa.Memory.WGT, y_size=3, x_size=5, x_pad_0=2, y_pad_1=1)
    assert work_of(load).bytes_loaded == 16 + 3 * 5 * 256
    narrow = isa.Load(memory=isa.Memory.ACC_8BIT, x_size=4)
    assert work_of(narrow).bytes_loaded == 16 + 4 * 16
    assert work_of(isa.Store(y_size=2, x_size=3)).bytes_stored == 2 * 3 * 16


def test_micro_ops_count_once_per_iteration_and_resets_multiply_nothing() -> None:
    asked = work_of(
        isa.Gemm(uop_end=3, iter_out=5, iter_in=7),
        isa.Gemm(uop_end=2, reset=1),
        isa.Alu(uop_end=4, iter_in=2, alu_opcode=isa.AluOp.ADD),
        isa.Finish(),
    )
    assert (asked.gemm_uops, asked.reset_uops, asked.alu_uops) == (105, 2, 8)
    assert asked.macs == 105 * 256


def test_gemm_and_alu_overlap_and_words_are_rounded_up() -> None:
    busy = Work(PYNQ, gemm_uops=10, reset_uops=0, alu_uops=30, bytes_loaded=79, bytes_stored=8)
    assert busy.compute_cycles == 30
    assert replace(busy, gemm_uops=40).compute_cycles == 40
    assert (busy.words_read, busy.words_written) == (10, 1)  # of 8 bytes


def test_illegal_instructions_count_only_as_fetched() -> None:
    illegal = [isa.instruction_set(PYNQ).encode(isa.Load(memory=7)), 7]
    asked = work(PYNQ, instruction_words(illegal))
    assert asked == Work(PYNQ, 0, 0, 0, bytes_loaded=32, bytes_stored=0)


@pytest.mark.parametrize("preset", PRESETS)
def test_work_is_that_of_the_instructions_decoded_one_by_one(preset: str) -> None:
    config = PRESETS[preset]
    instructions, rng = isa.instruction_set(config), np.random.default_rng(0)
    # Sparse bits, many of which are legal, with known and unknown opcodes.
    words = [rng.integers(0, 2**63, (4000, 2), np.uint64) for _ in range(4)]
    sparse = words[0] & words[1] & words[2] & words[3]
    sparse[:, 0] = sparse[:, 0] & ~np.uint64(7) | rng.integers(0, 8, 4000, np.uint64)
    expected, legal = Work(config, 0, 0, 0, 0, 0), 0
    for low, high in sparse.tolist():
        bits = low | high << 64
        expected = _with_fetched(expected)
        if instructions.problem(bits) is None:
            legal += 1
            expected = _with_decoded(expected, instructions.decode(bits))
    assert work(config, sparse) == expected
    assert legal > 100


def test_the_work_of_two_streams_adds_up() -> None:
    first = isa.Gemm(uop_end=3, iter_out=5), isa.Store(x_size=2)
    second = isa.Alu(uop_end=4, alu_opcode=isa.AluOp.ADD), isa.Gemm(uop_end=2, reset=1)
    assert work_of(*first) + work_of(*second) == work_of(*first, *second)


def _with_fetched(so_far: Work) -> Work:
    return replace(so_far, bytes_loaded=so_far.bytes_loaded + isa.INSTRUCTION_BYTES)


def _with_decoded(so_far: Work, instruction: isa.Instruction) -> Work:
    match instruction:
        case isa.Load() | isa.Store():
            memory = so_far.config.memory(isa.Memory(instruction.memory))
            size = instruction.x_size * instruction.y_size * memory.element_bytes
            stores = isinstance(instruction, isa.Store)
            what = "bytes_stored" if stores else "bytes_loaded"
        case isa.Gemm():
            what, size = ("reset_uops" if instruction.reset else "gemm_uops"), instruction.uops
        case isa.Alu():
            what, size = "alu_uops", instruction.uops
        case _:
            return so_far
    return replace(so_far, **{what: getattr(so_far, what) + size})
