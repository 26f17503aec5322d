"""Compute as a module: units, order, tokens, rate. Tests of its submodules check the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.compute import Compute
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.isa import (
    REQUANTIZE_PARAMETERS,
    Alu,
    AluOp,
    Cause,
    Finish,
    Gemm,
    Instruction,
    Load,
    Memory,
    Multiply,
    Padding,
    SetPadding,
    Uop,
    instruction_set,
    set_padding,
)
from amaranth_vta.hw.microarchitecture import Microarchitecture
from amaranth_vta.sim.testbench.amaranth import (
    BurstMemory,
    Pauses,
    checked_entry,
    never,
    pauses,
    put_all,
    shared,
    simulate,
)
from amaranth_vta.sw.compiler import te

TINY, EXTENDED = PRESETS["tiny"], PRESETS["tiny-extended"]
UOPS, ACCUMULATORS = 0x1000, 0x2000
# An element whose address causes a bus error.
BAD_ELEMENT = 60


@dataclass
class Outcome:
    """Cycles in which instructions retire and tokens are pushed; the fault; low bits of the
    accumulators.
    """

    retired: list[int] = field(default_factory=list)
    gave_load: list[int] = field(default_factory=list)
    gave_store: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    fault: tuple[int, int] | None = None
    waiting: int | None = None
    out: list[int] = field(default_factory=list)


def run(
    instructions: Sequence[Instruction],
    uops: Sequence[Uop] = (),
    *,
    accumulators: Sequence[int] = (),
    tokens_from_load: int = 0,
    others_retired: int = 1,
    pause: Pauses = never,
    cycles: int = 600,
    config: Config = TINY,
) -> Outcome:
    """Run instructions. ``accumulators`` has one value for all scalars of each element; the
    outcome's ``out`` is the first scalar of each element.
    """
    encoder = instruction_set(config)
    contents = np.zeros(1 << 14, np.uint8)
    contents[UOPS : UOPS + 4 * len(uops)] = np.array(
        [encoder.encode_uop(uop) for uop in uops], "<u4"
    ).view(np.uint8)
    values = np.repeat(np.array(accumulators, "<i4"), TINY.acc.rows * TINY.acc.columns)
    contents[ACCUMULATORS : ACCUMULATORS + values.nbytes] = values.view(np.uint8)
    dut = shared(Compute, config)
    bad = ACCUMULATORS + BAD_ELEMENT * TINY.acc.element_bytes
    memory = BurstMemory(contents, pause=pause, bad=[bad])
    outcome = Outcome()

    async def drive(ctx: Any) -> None:
        ctx.set(dut.bases, {"uop": UOPS, "acc": ACCUMULATORS})
        ctx.set(dut.others_retired, others_retired)
        available = tokens_from_load
        for cycle in range(cycles):
            ctx.set(dut.from_load.available, available > 0)
            _, _, take, load, store, retire, finished = await ctx.tick().sample(
                dut.from_load.take,
                dut.to_load.give,
                dut.to_store.give,
                dut.status.retire,
                dut.finished,
            )
            available -= take
            for happened, log in (
                (load, outcome.gave_load),
                (store, outcome.gave_store),
                (retire, outcome.retired),
                (finished, outcome.finished),
            ):
                if happened:
                    log.append(cycle)
        if ctx.get(dut.fault.valid):
            outcome.fault = (ctx.get(dut.fault.index), ctx.get(dut.fault.cause))
        if ctx.get(dut.status.waiting):
            outcome.waiting = ctx.get(dut.status.index)
        # Two elements of four bytes per beat of the bus.
        for element in range(len(accumulators)):
            ctx.set(dut.out_read.enable, 1)
            ctx.set(dut.out_read.index, element)
            await ctx.tick()
            low = ctx.get(dut.out_read.data[0]) & 0xFF
            outcome.out.append(low - 256 if low & 0x80 else low)

    async def scratchpads(ctx: Any) -> None:
        """Every input is 1 and every weight 2: a product adds 8."""
        ctx.set(dut.inp_read.data, [0x01010101])
        ctx.set(dut.wgt_read.data, [int.from_bytes(bytes([2] * 16), "little")])

    async def reads(ctx: Any) -> None:
        await memory.serve_reads(ctx, dut.read)

    async def put(ctx: Any) -> None:
        entries = [checked_entry(config, x, n) for n, x in enumerate(instructions)]
        await put_all(ctx, dut.insn, entries, pause)

    simulate(dut, scratchpads, drive, background=[reads, put])
    return outcome


def load_uops(count: int) -> Load:
    return Load(memory=Memory.UOP, x_size=count)


def load_accumulators(count: int) -> Load:
    return Load(memory=Memory.ACC, x_size=count)


@pytest.mark.parametrize("probability", [0, 0.4])
def test_units_work_one_after_the_other_in_stream_order(probability: float) -> None:
    add, scale = ({"alu_opcode": op, "use_immediate": 1} for op in (AluOp.ADD, AluOp.MUL))
    outcome = run(
        [
            load_uops(2),
            load_accumulators(2),
            Alu(uop_end=2, immediate=3, **add),
            Gemm(uop_end=2),
            Alu(uop_end=2, immediate=2, **scale),
            Gemm(uop_begin=1, uop_end=2, reset=1),
            load_uops(1),
            Alu(uop_end=1, immediate=-1, **add),
            Finish(),
        ],
        [Uop(dst=0), Uop(dst=1)],
        accumulators=[10, 20],
        pause=pauses(probability, 3),
    )
    assert outcome.fault is None
    assert outcome.out == [(10 + 3 + 8) * 2 - 1, 0]
    assert len(outcome.retired) == 9
    assert outcome.finished == [outcome.retired[-1]]


def test_short_gemms_follow_one_another_without_a_gap() -> None:
    outcome = run([load_uops(16), *[Gemm(uop_end=16)] * 20], [Uop(dst=n) for n in range(16)])
    first, last = outcome.retired[1], outcome.retired[-1]
    assert last - first == 19 * 16


def test_tokens_are_given_when_an_instruction_retires() -> None:
    outcome = run(
        [
            load_uops(1),
            Gemm(uop_end=1, push_prev=1),
            Gemm(uop_end=0, push_next=1),
            Gemm(uop_end=1, push_prev=1, push_next=1),
        ],
        [Uop()],
    )
    assert outcome.gave_load == [outcome.retired[1], outcome.retired[3]]
    assert outcome.gave_store == [outcome.retired[2], outcome.retired[3]]


def test_an_instruction_waits_for_its_token() -> None:
    program = [Gemm(uop_end=0), Gemm(uop_end=0, pop_prev=1), Gemm(uop_end=0)]
    outcome = run(program)
    assert len(outcome.retired) == 1
    assert outcome.waiting == 1
    assert len(run(program, tokens_from_load=1).retired) == 3


def test_finish_waits_for_the_other_modules() -> None:
    outcome = run([Gemm(uop_end=0), Finish()], others_retired=0)
    assert len(outcome.retired) == 1
    assert outcome.finished == []
    assert outcome.waiting == 1


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (Load(memory=Memory.OUT), Cause.ILLEGAL_INSTRUCTION),
        (Load(memory=Memory.UOP, reserved=1), Cause.ILLEGAL_INSTRUCTION),
        (Alu(uop_end=1, alu_opcode=5), Cause.ILLEGAL_INSTRUCTION),
        (Load(memory=Memory.UOP, x_size=TINY.uop.depth + 1), Cause.INDEX_OUT_OF_RANGE),
        (Load(memory=Memory.ACC, sram_base=TINY.acc.depth), Cause.INDEX_OUT_OF_RANGE),
        (Load(memory=Memory.ACC_8BIT, y_size=TINY.acc.depth + 1), Cause.INDEX_OUT_OF_RANGE),
        (Gemm(uop_end=1, iter_out=2, dst_factor_out=TINY.acc.depth - 1), Cause.INDEX_OUT_OF_RANGE),
        (Gemm(uop_end=1, iter_in=2, src_factor_in=TINY.inp.depth - 1), Cause.INDEX_OUT_OF_RANGE),
        (
            Alu(uop_end=1, alu_opcode=AluOp.ADD, iter_in=2, src_factor_in=TINY.acc.depth - 1),
            Cause.INDEX_OUT_OF_RANGE,
        ),
        (Load(memory=Memory.ACC, dram_base=BAD_ELEMENT), Cause.BUS_ERROR),
    ],
)
def test_stops_at_a_faulty_instruction_after_all_earlier_ones(
    wrong: Instruction, cause: Cause
) -> None:
    long = Gemm(uop_end=1, iter_out=50, push_next=1)
    outcome = run(
        [load_uops(1), long, wrong, Gemm(uop_end=1, push_next=1), Finish()],
        [Uop(dst=1, src=1)],
        cycles=300,
    )
    assert outcome.fault == (2, cause)
    assert len(outcome.retired) == 2
    assert len(outcome.gave_store) == 1


def test_sources_that_are_not_read_are_not_checked() -> None:
    outcome = run(
        [
            load_uops(1),
            Gemm(uop_end=1, reset=1, iter_in=2, src_factor_in=TINY.inp.depth - 1),
            Alu(
                uop_end=1,
                alu_opcode=AluOp.ADD,
                use_immediate=1,
                iter_in=2,
                src_factor_in=TINY.acc.depth - 1,
            ),
            Finish(),
        ],
        [Uop(dst=0, src=1)],
    )
    assert outcome.fault is None
    assert outcome.finished != []


def overlapping(independent: int, alu_bank: int, passes: int = 1) -> Outcome:
    """Five GEMM instructions of 32 micro-ops in the lower bank, each followed by ALU instructions
    of 24 micro-ops in total."""
    half = EXTENDED.acc.depth // 2
    gemm = Gemm(uop_end=1, iter_in=32, dst_factor_in=1, independent=independent)
    alu = Alu(
        uop_begin=1 + alu_bank,
        uop_end=2 + alu_bank,
        iter_in=24 // passes,
        dst_factor_in=1,
        alu_opcode=AluOp.ADD,
        use_immediate=1,
        immediate=1,
        independent=independent,
    )
    uops = [Uop(dst=0), Uop(dst=32), Uop(dst=half)]
    outcome = run([load_uops(3), *[gemm, *[alu] * passes] * 5, Finish()], uops, config=EXTENDED)
    assert outcome.fault is None
    assert len(outcome.retired) == 2 + 5 * (1 + passes)
    return outcome


def test_independent_instructions_overlap_in_different_banks() -> None:
    outcome = overlapping(independent=1, alu_bank=1)
    # Each round takes as long as its GEMM; the ALU takes no extra cycles.
    assert outcome.retired[9] - outcome.retired[1] == 4 * 32
    outcome = overlapping(independent=0, alu_bank=1)
    assert outcome.retired[9] - outcome.retired[1] > 4 * (32 + 24)


def test_several_alu_instructions_overlap_the_next_gemm() -> None:
    outcome = overlapping(independent=1, alu_bank=1, passes=4)
    assert outcome.retired[4 * 5 + 1] - outcome.retired[1] == 4 * 32


@pytest.mark.parametrize("gemm_fails", [True, False])
def test_a_unit_stops_at_a_fault_of_the_other_one(gemm_fails: bool) -> None:
    depth, half = EXTENDED.acc.depth, EXTENDED.acc.depth // 2
    beyond = {"uop_end": 1, "iter_in": 2, "dst_factor_in": depth - 1, "independent": 1}
    loop = {"uop_begin": 1, "uop_end": 2, "iter_in": half, "dst_factor_in": 1, "independent": 1}
    increment = {"alu_opcode": AluOp.ADD, "use_immediate": 1, "immediate": 8}
    program = [Gemm(**beyond), Alu(**loop, **increment)]
    if not gemm_fails:
        program = [Alu(**beyond, **increment), Gemm(**loop)]
    outcome = run(
        [load_uops(2), Gemm(**loop | {"reset": 1}), *program, Finish()],
        [Uop(dst=1), Uop(dst=half)],
        accumulators=[0] * depth,
        config=EXTENDED,
    )
    assert outcome.fault == (2, Cause.INDEX_OUT_OF_RANGE)
    # It started before the fault, and does not continue.
    assert 0 < sum(value == 8 for value in outcome.out[half:]) < 16 < half


def test_what_waits_for_the_other_unit_does_not_stop_what_need_not() -> None:
    """The ALU waits for the first GEMM while the second one runs; the third waits for the ALU."""
    half = EXTENDED.acc.depth // 2
    gemm, other = (Gemm(uop_begin=n, uop_end=n + 1, iter_in=32, dst_factor_in=1) for n in (0, 1))
    double = Alu(
        uop_end=1,
        iter_in=32,
        dst_factor_in=1,
        alu_opcode=AluOp.SHR,
        use_immediate=1,
        immediate=-1,
    )
    outcome = run(
        [
            load_uops(2),
            load_accumulators(32),
            gemm,
            double,
            replace(other, independent=1),
            Gemm(uop_end=0),  # what follows it may overlap with later ALU instructions
            replace(gemm, independent=1),
            Finish(),
        ],
        [Uop(), Uop(dst=half)],
        accumulators=range(32),
        config=EXTENDED,
    )
    assert outcome.fault is None
    assert outcome.out == [2 * (n + 8) + 8 for n in range(32)]
    first, third = outcome.retired[2], outcome.retired[6]
    tile_registers = Microarchitecture.of(EXTENDED).tile_registers
    assert third - first < 2 * 32 + 20 + tile_registers


def test_independent_instructions_in_one_bank_take_turns() -> None:
    outcome = overlapping(independent=1, alu_bank=0)
    assert outcome.retired[9] - outcome.retired[1] >= 4 * (32 + 24)


def test_a_multiplication_sets_what_a_gemm_adds_to() -> None:
    outcome = run(
        [
            load_uops(2),
            load_accumulators(2),
            Multiply(uop_end=1),
            Gemm(uop_end=2),
            Finish(),
        ],
        [Uop(dst=0), Uop(dst=1)],
        accumulators=[10, 20],
        config=EXTENDED,
    )
    assert outcome.out == [8 + 8, 20 + 8]


def test_padding_has_the_value_set_before_it_and_that_of_micro_ops_is_zero() -> None:
    pad = Load(memory=Memory.ACC, y_size=0, y_pad_0=1)
    outcome = run(
        [
            load_accumulators(4),
            set_padding(Padding.COMPUTE, -3),
            pad,
            set_padding(Padding.COMPUTE, 7),
            replace(pad, memory=Memory.ACC_8BIT, sram_base=2),
            # A micro-op of padding: accumulator 0, plus 1.
            replace(pad, memory=Memory.UOP),
            Alu(uop_end=1, alu_opcode=AluOp.ADD, use_immediate=1, immediate=1),
            Finish(),
        ],
        accumulators=[10, 20, 30, 40],
        config=EXTENDED,
    )
    assert outcome.fault is None
    assert outcome.out == [-3 + 1, 20, 7, 40]


def test_only_the_padding_value_of_compute_is_legal_here() -> None:
    for memory, name in (
        (Padding.LOAD, ""),
        *((Padding.COMPUTE, x) for x in ("x_size", "y_pad_1")),
    ):
        wrong = SetPadding(memory=memory, **({name: 1} if name else {}))
        outcome = run([Gemm(uop_end=0), wrong, Finish()], config=EXTENDED, cycles=100)
        assert outcome.fault == (1, Cause.ILLEGAL_INSTRUCTION)


def test_requantization_reads_its_parameters_when_they_change() -> None:
    """Two channels with scales 1/2 and 1/4, two accumulators each, followed by the parameters."""
    halves, quarters = te.requantization_parameters([0, 2], [0.5, 0.25], 5, -128, 127).tolist()
    outcome = run(
        [
            load_uops(2),
            load_accumulators(12),
            Alu(uop_end=2, iter_in=2, dst_factor_in=1, alu_opcode=AluOp.REQUANTIZE),
            Finish(),
        ],
        [Uop(dst=0, src=4), Uop(dst=2, src=8)],
        accumulators=[10, -11, 10, 400, *halves, *quarters],
        config=EXTENDED,
    )
    assert outcome.fault is None
    # Halves go to the even neighbour: -5.5 to -6, and 100.5 to 100.
    assert outcome.out[:4] == [5 + 5, -6 + 5, 3 + 5, 100 + 5]


def test_a_table_is_read_again_after_any_accumulator_of_a_beat_changes_it() -> None:
    """On a bus of two accumulators per beat, the second one is the first of the table."""
    before, after = 0x05050505, 0x09090909
    look_up = Alu(uop_end=1, alu_opcode=AluOp.LOOKUP)
    outcome = run(
        [
            load_uops(1),
            load_accumulators(18),
            look_up,
            Load(memory=Memory.ACC, dram_base=18, x_size=2),
            look_up,
            Finish(),
        ],
        [Uop(dst=0, src=1)],
        accumulators=[3, *[before] * 16, 0, 3, after],
        config=replace(EXTENDED, log_bus_width=8),
    )
    assert outcome.fault is None
    assert outcome.out[0] == 9


def test_parameters_past_the_depth_are_out_of_range() -> None:
    requantize = Alu(uop_end=1, alu_opcode=AluOp.REQUANTIZE)
    for src, fault in (
        (EXTENDED.acc.depth - REQUANTIZE_PARAMETERS, None),
        (EXTENDED.acc.depth - REQUANTIZE_PARAMETERS + 1, (1, Cause.INDEX_OUT_OF_RANGE)),
    ):
        outcome = run([load_uops(1), requantize, Finish()], [Uop(src=src)], config=EXTENDED)
        assert outcome.fault == fault


def test_an_instruction_waits_for_its_unit_while_many_of_the_other_one_come_and_go() -> None:
    """Two long instructions precede it. Meanwhile the other unit retires all that were in flight
    when the waiting instruction was issued, and as many later ones.
    """
    short = Alu(uop_begin=1, uop_end=2, alu_opcode=AluOp.ADD, use_immediate=1, independent=1)
    long = Gemm(uop_end=1, iter_in=500, independent=1)
    program = [load_uops(2), *[short] * 13, long, long, Gemm(independent=1, uop_end=1)]
    uops = [Uop(), Uop(dst=EXTENDED.acc.depth // 2)]
    outcome = run([*program, *[short] * 13, Finish()], uops, config=EXTENDED, cycles=1600)
    assert len(outcome.retired) == len(program) + 14
