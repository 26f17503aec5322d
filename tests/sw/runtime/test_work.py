from __future__ import annotations

from dataclasses import replace

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PYNQ
from amaranth_vta.sw.runtime.work import Work, work


def work_of(*instructions: isa.Instruction) -> Work:
    encode = isa.instruction_set(PYNQ).encode
    return work(PYNQ, [encode(instruction) for instruction in instructions])


def test_a_load_counts_what_crosses_the_bus_without_its_padding() -> None:
    load = isa.Load(memory=isa.Memory.WGT, y_size=3, x_size=5, x_pad_0=2, y_pad_1=1)
    assert work_of(load).bytes_loaded == 16 + 3 * 5 * 256
    narrow = isa.Load(memory=isa.Memory.ACC_8BIT, x_size=4)
    assert work_of(narrow).bytes_loaded == 16 + 4 * 16
    assert work_of(isa.Store(y_size=2, x_size=3)).bytes_stored == 2 * 3 * 16


def test_micro_ops_count_once_an_iteration_and_resets_multiply_nothing() -> None:
    asked = work_of(
        isa.Gemm(uop_end=3, iter_out=5, iter_in=7),
        isa.Gemm(uop_end=2, reset=1),
        isa.Alu(uop_end=4, iter_in=2, alu_opcode=isa.AluOp.ADD),
        isa.Finish(),
    )
    assert (asked.gemm_uops, asked.reset_uops, asked.alu_uops) == (105, 2, 8)
    assert asked.macs == 105 * 256


def test_the_bound_is_the_larger_of_compute_and_bus() -> None:
    busy = Work(PYNQ, gemm_uops=10, reset_uops=0, alu_uops=30, bytes_loaded=79, bytes_stored=8)
    assert busy.bound_cycles == 30
    assert replace(busy, alu_uops=0).bound_cycles == 11  # 87 bytes, 8 a cycle
    assert replace(busy, gemm_uops=40).bound_cycles == 40


def test_illegal_instructions_count_only_as_fetched() -> None:
    asked = work(PYNQ, [isa.instruction_set(PYNQ).encode(isa.Load(memory=7)), 7])
    assert asked == Work(PYNQ, 0, 0, 0, bytes_loaded=32, bytes_stored=0)
