"""The functional model against the conformance vectors, and as a device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import Alu, AluOp, Finish, Gemm, Instruction, Load, Memory, Store, Uop
from amaranth_vta.hw.isa import instruction_set as isa_of
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.model.observers.uninitialized_reads import UninitializedRead
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sw.runtime.device import Fault
from tests.support import golden

VECTORS = sorted(golden.VECTORS.glob("*.npz"))
ORDERS = ("program", "reverse", "random:1", "last:load", "last:compute")
TINY = PRESETS["tiny"]


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_vectors_give_every_byte_in_every_order(path: Path) -> None:
    image = ProgramImage.load(path)
    assert image.expected is not None
    for order in ORDERS:
        device = FunctionalDevice(
            image.config, image.dram.size, order, report_uninitialized=True, report_races=True
        )
        device.write(0, image.dram)
        result = device.run(image.insn_addr, image.insn_count)
        assert result.fault is None
        assert np.array_equal(device.read(0, image.dram.size), image.expected), order
        assert device.uninitialized_reads == []
        assert device.races == []
        kinds = [name for name in result.counters if name.endswith("_instructions")]
        finish = 1
        assert sum(result.counters[kind] for kind in kinds) + finish == image.insn_count


def test_there_are_vectors() -> None:
    assert len(VECTORS) == 20


def tiny_device(
    *programs: list[Instruction], order: str = "program", report_uninitialized: bool = False
) -> FunctionalDevice:
    """A tiny machine; memory holds a ramp from byte 0, and program ``n`` at 0x1000 * (n + 1)."""
    device = FunctionalDevice(TINY, 0x8000, order, report_uninitialized)
    device.write(0, np.arange(0x800, dtype=np.uint16).astype(np.uint8))
    for number, program in enumerate(programs):
        image = ProgramImage.assemble(TINY, np.zeros(0x8000, np.uint8), 0, program)
        device.write(0x1000 * (number + 1), image.dram[: 16 * len(program)])
    return device


def test_scratchpads_keep_their_contents_from_run_to_run() -> None:
    load: list[Instruction] = [Load(memory=Memory.ACC, x_size=3), Finish()]
    store: list[Instruction] = [Store(dram_base=0x700 // 4, x_size=3), Finish()]
    device = tiny_device(load, store)
    assert device.run(0x1000, 2).fault is None
    assert device.run(0x2000, 2).fault is None
    low_bytes = device.read(0, 48).reshape(12, 4)[:, 0]
    assert np.array_equal(device.read(0x700, 12), low_bytes)


def test_the_machine_runs_the_next_program_after_a_fault() -> None:
    device = tiny_device(
        [Load(memory=Memory.ACC, x_size=1, push_next=1), Store(pop_prev=1, push_prev=1), Store()],
        [Load(memory=Memory.ACC, x_size=1), Alu(alu_opcode=AluOp.ADD, uop_end=0), Finish()],
    )
    result = device.run(0x1000, 3)
    assert result.fault == Fault("fetch", 2, "bad_stream")
    result = device.run(0x2000, 3)
    assert result.fault is None
    assert sum(result.tokens_left.values()) == 0


def test_tokens_left_over_are_counted_by_queue() -> None:
    program: list[Instruction] = [
        *[Load(memory=Memory.INP, x_size=0, push_next=1)] * 2,
        *[Gemm(uop_end=0, push_prev=1)] * 3,
        *[Gemm(uop_end=0, push_next=1)] * 4,
        *[Store(x_size=0, push_prev=1)] * 5,
        Store(x_size=0, pop_prev=1),
        Finish(pop_prev=1, pop_next=1, push_prev=1, push_next=1),
    ]
    for order in ORDERS:
        result = tiny_device(program, order=order).run(0x1000, len(program))
        assert result.fault is None
        assert result.tokens_left == {
            "load_to_compute": 1,
            "compute_to_load": 4,
            "compute_to_store": 4,
            "store_to_compute": 4,
        }


def test_reads_of_elements_never_written_are_reported() -> None:
    uops = isa_of(TINY)
    program: list[Instruction] = [
        Load(memory=Memory.UOP, x_size=1, dram_base=0x600 // 4),
        Load(memory=Memory.INP, sram_base=5, x_size=1),
        Gemm(uop_end=2, iter_out=2, src_factor_out=1),
        Gemm(uop_end=1, iter_out=4, dst_factor_out=1, reset=1),
        Alu(uop_end=1, alu_opcode=AluOp.ADD, use_immediate=1, dst_factor_in=7, iter_in=2),
        Store(sram_base=2, x_size=3, dram_base=0x700 // 4),
        Finish(),
    ]
    device = tiny_device(program, report_uninitialized=True)
    device.write(0x600, uops.encode_uop(Uop(dst=0, src=4, wgt=9)).to_bytes(4, "little"))
    device.run(0x1000, len(program))
    reads = device.uninitialized_reads
    assert UninitializedRead(2, "UOP", 1) in reads
    assert UninitializedRead(2, "UOP", 0) not in reads
    assert UninitializedRead(2, "ACC", 0) in reads
    assert UninitializedRead(2, "INP", 4) in reads
    assert UninitializedRead(2, "INP", 5) not in reads
    assert UninitializedRead(2, "WGT", 9) in reads
    assert [read for read in reads if read.instruction > 2] == [
        UninitializedRead(4, "ACC", 7),
        UninitializedRead(5, "ACC", 4),
    ]
    assert str(reads[-1]) == "instruction 5 reads ACC[4], never written"
    assert len(set(reads)) == len(reads)
    silent = tiny_device(program)
    silent.run(0x1000, len(program))
    assert silent.uninitialized_reads == []


def test_the_last_row_of_an_overlapping_store_stays() -> None:
    program: list[Instruction] = [
        Load(memory=Memory.ACC, x_size=6),
        Store(dram_base=0x700 // 4, x_size=3, y_size=2, x_stride=1),
        Finish(),
    ]
    device = tiny_device(program)
    device.run(0x1000, 3)
    low = device.read(0, 96).reshape(6, 16)[:, ::4]
    assert np.array_equal(device.read(0x700, 16).reshape(4, 4), low[[0, 3, 4, 5]])


def test_an_instruction_that_faults_writes_nothing() -> None:
    program: list[Instruction] = [
        Load(memory=Memory.ACC, x_size=8, push_next=1),
        Store(dram_base=0x8000 // 4 - 1, x_size=1, y_size=2, x_stride=1, pop_prev=1),
        Finish(),
    ]
    device = tiny_device(program)
    device.write(0x7FFC, b"kept")
    assert device.run(0x1000, 3).fault == Fault("store", 1, "bus_error")
    assert device.read(0x7FFC, 4).tobytes() == b"kept"


def test_counters_add_up_what_was_done() -> None:
    program: list[Instruction] = [
        Load(memory=Memory.UOP, x_size=2),
        Load(memory=Memory.ACC_8BIT, x_size=3, y_size=2, x_stride=3, y_pad_0=1),
        Gemm(uop_end=2, iter_out=3, iter_in=5, reset=1),
        Gemm(uop_end=1, iter_out=3, iter_in=5),
        Store(dram_base=0x700 // 4, x_size=2, y_size=2),
        Finish(),
    ]
    device = tiny_device(program)
    device.write(0, bytes(8))
    result = device.run(0x1000, len(program))
    assert result.fault is None
    assert result.cycles is None
    assert {name: count for name, count in result.counters.items() if count} == {
        "compute_load_instructions": 2,
        "gemm_instructions": 2,
        "store_instructions": 1,
        "gemm_uops": 15,
        "macs": 15 * 16,
        "uop_elements": 2,
        "uop_bytes": 8,
        "acc_8bit_elements": 6,
        "acc_8bit_bytes": 6 * 4,
        "out_elements": 4,
        "out_bytes": 16,
        "bytes_loaded": 8 + 6 * 4,
        "bytes_stored": 16,
    }


def test_a_run_that_takes_too_long_is_stopped() -> None:
    endless = Gemm(uop_end=2, iter_out=(1 << 14) - 1, iter_in=(1 << 14) - 1)
    device = tiny_device([Load(memory=Memory.UOP, x_size=2), endless, Finish()])
    device.write(0, bytes(8))
    result = device.run(0x1000, 3, time_limit=0.05)
    assert result.fault == Fault("compute", 1, "timeout")
    assert 0.05 < result.seconds < 2


@pytest.mark.parametrize("order", ["program", "reverse"])
def test_a_run_without_time_does_not_begin(order: str) -> None:
    short: list[Instruction] = [Load(memory=Memory.UOP, x_size=2), Finish()]
    device = tiny_device(short, order=order)
    assert device.run(0x1000, 2, time_limit=60).fault is None
    assert device.run(0x1000, 2, time_limit=0).fault == Fault("fetch", 0, "timeout")


def test_memory_is_rounded_up_and_bounded() -> None:
    device = FunctionalDevice(TINY, 65)
    assert device.memory_bytes == 128
    device.write(120, np.array([-1], np.int64))
    assert device.read(119, 9).tolist() == [0] + [255] * 8
    for call in (
        lambda: device.read(120, 9),
        lambda: device.read(-1, 2),
        lambda: device.read(0, -1),
        lambda: device.write(128, b"x"),
    ):
        with pytest.raises(ValueError, match="not within the device's 0x80 bytes"):
            call()
    copy = device.read(0, 4)
    copy[:] = 7
    assert device.read(0, 4).sum() == 0


def test_what_cannot_be_run_is_refused() -> None:
    with pytest.raises(ValueError, match="neither can be negative"):
        FunctionalDevice(TINY, 64).run(0, -1)
    for order in ("random", "random:x", "random:-1", "latest", "last:fetch", ""):
        with pytest.raises(ValueError, match="is not program, reverse, random:SEED"):
            FunctionalDevice(TINY, 64, order=order)
