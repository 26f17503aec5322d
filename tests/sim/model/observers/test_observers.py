"""Races are reported exactly where no token orders conflicting accesses of two modules."""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import (
    REQUANTIZE_PARAMETERS,
    Alu,
    AluOp,
    Finish,
    Gemm,
    Instruction,
    Load,
    Memory,
    Multiply,
    Store,
)
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.model.observers.false_claims import FalseClaim
from amaranth_vta.sim.model.observers.races import Race
from amaranth_vta.sim.programs.image import ProgramImage

CONFIG = PRESETS["tiny"]
PROGRAM = 0x8000
ORDERS = ("program", "reverse", "random:7", "last:load", "last:compute", "last:store")


def races(*program: Instruction, order: str = "program") -> list[Race]:
    device = FunctionalDevice(CONFIG, 0x10000, order, report_races=True)
    image = ProgramImage.assemble(CONFIG, np.zeros(0x10000, np.uint8), PROGRAM, program)
    device.write(0, image.dram)
    assert device.run(PROGRAM, len(program)).fault is None
    return device.races


def uops() -> Load:
    return Load(memory=Memory.UOP, x_size=1)


def load(memory: Memory = Memory.INP, **fields: int) -> Load:
    return Load(memory=memory, **{"x_size": 2, "y_size": 1, **fields})


def gemm(**fields: int) -> Gemm:
    return Gemm(**{"uop_end": 1, **fields})


def store(**fields: int) -> Store:
    return Store(**{"x_size": 1, "dram_base": 0x1000, **fields})


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        # A read after a write, ordered and not.
        ([load(push_next=1), uops(), gemm(pop_prev=1)], []),
        ([load(), uops(), gemm()], [Race(0, 2, "INP", 0)]),
        ([load(Memory.WGT), uops(), gemm()], [Race(0, 2, "WGT", 0)]),
        # A later instruction of the same module inherits the order.
        ([load(), load(sram_base=9, push_next=1), uops(), gemm(pop_prev=1), gemm()], []),
        # A token that is pushed too early does not order later instructions.
        (
            [load(sram_base=9, push_next=1), load(), uops(), gemm(pop_prev=1)],
            [Race(1, 3, "INP", 0)],
        ),
        # The second token popped is the second one pushed.
        ([load(sram_base=9, push_next=1), load(push_next=1), uops(), gemm(pop_prev=1)],
         [Race(1, 3, "INP", 0)]),
        ([load(sram_base=9, push_next=1), load(push_next=1), uops(),
          gemm(uop_end=0, pop_prev=1), gemm(pop_prev=1)], []),
        # A write after a read.
        ([load(push_next=1), uops(), gemm(pop_prev=1, push_prev=1), load(pop_next=1)], []),
        ([load(push_next=1), uops(), gemm(pop_prev=1), load()], [Race(2, 3, "INP", 0)]),
        # A reset does not read inputs and weights.
        ([load(), uops(), gemm(reset=1)], []),
        # Disjoint elements need no order; nor do two readers.
        ([load(), uops(), gemm(src_factor_in=1, iter_in=1), load(sram_base=1)],
         [Race(0, 2, "INP", 0)]),
        ([uops(), gemm(), load(sram_base=1)], []),
        ([uops(), load()], []),
        # Accumulators between compute and store, both ways.
        ([uops(), gemm(reset=1, push_next=1), store(pop_prev=1)], []),
        ([uops(), gemm(reset=1), store()], [Race(1, 2, "ACC", 0)]),
        ([load(Memory.ACC), store(sram_base=1)], [Race(0, 1, "ACC", 1)]),
        ([load(Memory.ACC_8BIT, push_next=1), store(pop_prev=1, push_prev=1),
          load(Memory.ACC, pop_next=1)], []),
        # DRAM: load reads what store wrote, through a token of compute's.
        (
            [
                store(push_prev=1),
                gemm(uop_end=0, pop_next=1, push_prev=1),
                load(pop_next=1, dram_base=0x1000),
            ],
            [],
        ),
        ([store(), load(dram_base=0x1000)], [Race(0, 1, "DRAM", 0x4000)]),
        ([store(), load(Memory.UOP, dram_base=0x1000)], [Race(0, 1, "DRAM", 0x4000)]),
        ([load(Memory.ACC, dram_base=0x400, push_next=1), store(pop_prev=1)], []),
        ([load(dram_base=0x0FFD, x_size=5), store()], [Race(0, 1, "DRAM", 0x4000)]),
    ],
)  # fmt: skip
def test_races_are_what_no_token_orders(
    program: list[Instruction], expected: list[Race], order: str
) -> None:
    assert races(*program, Finish(), order=order) == expected


@pytest.mark.parametrize("order", ORDERS)
def test_a_store_over_its_own_stream_is_a_race_with_fetch(order: str) -> None:
    # The stream's first instruction, which is the store itself; then elements just before and after
    # the stream.
    program = [store(dram_base=PROGRAM // 4), Finish()]
    assert races(*program, order=order) == [Race(0, 0, "DRAM", PROGRAM, over_stream=True)]
    its_end = [store(dram_base=PROGRAM // 4 - 2, x_size=3), Finish()]
    assert races(*its_end, order=order) == [Race(0, 0, "DRAM", PROGRAM, over_stream=True)]
    for place in (PROGRAM // 4 - 1, PROGRAM // 4 + 8):
        assert races(store(dram_base=place), Finish(), order=order) == []


def test_an_instruction_that_is_stored_over_is_named() -> None:
    device = FunctionalDevice(CONFIG, 0x10000, report_races=True)
    program = [store(dram_base=PROGRAM // 4 + 9), load(), load(), Finish()]
    image = ProgramImage.assemble(CONFIG, np.zeros(0x10000, np.uint8), PROGRAM, program)
    device.write(0, image.dram)
    device.run(PROGRAM, len(program))  # however it ends
    assert device.races == [Race(2, 0, "DRAM", PROGRAM + 36, over_stream=True)]


def test_a_race_is_told_in_a_sentence() -> None:
    assert str(Race(7, 3, "DRAM", 4096, over_stream=True)) == (
        "instruction 3 stores over instruction 7 of its own stream, at DRAM[4096]"
    )
    assert str(Race(3, 8, "ACC", 17)) == (
        "no token orders instructions 3 and 8, which meet at ACC[17]"
    )


def test_each_run_is_judged_by_itself() -> None:
    device = FunctionalDevice(CONFIG, 0x10000, report_races=True)
    for address, program in ((0x8000, [load(), Finish()]), (0x9000, [uops(), gemm(), Finish()])):
        image = ProgramImage.assemble(CONFIG, device.read(0, 0x10000), address, program)
        device.write(0, image.dram)
        assert device.run(address, len(program)).fault is None
        assert device.races == []


EXTENDED = PRESETS["tiny-extended"]


def false_claims(*program: Instruction) -> list[FalseClaim]:
    device = FunctionalDevice(EXTENDED, 0x10000, report_false_claims=True)
    image = ProgramImage.assemble(EXTENDED, np.zeros(0x10000, np.uint8), PROGRAM, program)
    device.write(0, image.dram)
    assert device.run(PROGRAM, len(program)).fault is None
    return device.false_claims


def at(element: int, **fields: int) -> dict[str, int]:
    """A micro-op of zeros whose second iteration has ``element`` as its destination."""
    return {"uop_end": 1, "iter_in": 2, "dst_factor_in": element, **fields}


def multiply_add(factor: int, **fields: int) -> Alu:
    return Alu(alu_opcode=AluOp.MULTIPLY_ADD, immediate=factor, **fields)


def alu(**fields: int) -> Alu:
    return Alu(**{"alu_opcode": AluOp.ADD, "uop_end": 1, "use_immediate": 1, **fields})


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        # There is no false claim without the bit or without a common element.
        ([gemm(), alu()], []),
        ([gemm(), alu(uop_end=0, independent=1)], []),
        # Each way in which two instructions can conflict.
        ([gemm(), alu(independent=1)], [FalseClaim(1, 2, 0)]),
        ([Multiply(uop_end=1), alu(independent=1)], [FalseClaim(1, 2, 0)]),
        ([gemm(reset=1), alu(independent=1)], [FalseClaim(1, 2, 0)]),
        ([alu(), gemm(independent=1)], [FalseClaim(1, 2, 0)]),
        ([alu(), Multiply(uop_end=1, independent=1)], [FalseClaim(1, 2, 0)]),
        # A source is read, an immediate is not.
        ([Multiply(**at(7)), alu(independent=1, use_immediate=0)], [FalseClaim(1, 2, 0)]),
        # Instructions of one unit keep their order.
        ([gemm(), gemm(independent=1), Multiply(uop_end=1, independent=1)], []),
        ([alu(), alu(independent=1)], []),
        # An instruction without the bit waits only for the other unit, a load for both.
        ([gemm(), alu(), gemm(independent=1)], [FalseClaim(2, 3, 0)]),
        ([gemm(), alu(), alu(independent=1)], []),
        ([gemm(), uops(), alu(independent=1)], []),
        ([gemm(), load(), alu(independent=1)], [FalseClaim(1, 3, 0)]),
        ([gemm(), store(sram_base=50), alu(independent=1)], [FalseClaim(1, 3, 0)]),
        # A requantization must not write parameters that the unit may have cached.
        (
            [Alu(alu_opcode=AluOp.REQUANTIZE, uop_end=1)],
            [FalseClaim(1, 1, 0)],
        ),
        ([Alu(alu_opcode=AluOp.REQUANTIZE, **at(0, dst_factor_out=2))], [FalseClaim(1, 1, 0)]),
        # A MULTIPLY_ADD must not write its factor; it may write its addend.
        ([multiply_add(7, **at(7))], [FalseClaim(1, 1, 7)]),
        ([multiply_add(7, **at(8))], []),
    ],
)  # fmt: skip
def test_claims_are_false_where_the_units_meet(
    program: list[Instruction], expected: list[FalseClaim]
) -> None:
    assert false_claims(uops(), *program, Finish()) == expected


def claims_of_other_elements(
    dst: int, src: int, then: int, factor: int | None = None
) -> list[FalseClaim]:
    """The false claims in a sequence of a product in ACC[0], a requantization, and a product in
    ACC[then]; with ``factor``, a MULTIPLY_ADD replaces the requantization.
    """
    place = {"uop_begin": 1, "uop_end": 2, "independent": 1}
    requantize = Alu(alu_opcode=AluOp.REQUANTIZE, **place)
    words = np.array([0, dst | src << 7, then], "<u4").view(np.uint8)
    program = [
        Load(memory=Memory.UOP, x_size=3),
        Multiply(uop_end=1),
        requantize if factor is None else multiply_add(factor, **place),
        Multiply(uop_begin=2, uop_end=3, independent=1),
        Finish(),
    ]
    image = ProgramImage.assemble(EXTENDED, np.zeros(0x10000, np.uint8), PROGRAM, program)
    image.dram[: words.size] = words
    device = FunctionalDevice(EXTENDED, image.dram.size, report_false_claims=True)
    device.write(0, image.dram)
    assert device.run(PROGRAM, len(program)).fault is None
    return device.false_claims


def test_every_element_that_is_read_counts() -> None:
    assert claims_of_other_elements(dst=64, src=67, then=0) == []
    assert claims_of_other_elements(dst=64, src=0, then=5) == [FalseClaim(1, 2, 0)]
    for parameter in range(REQUANTIZE_PARAMETERS):
        element = 20 + parameter
        assert claims_of_other_elements(dst=64, src=20, then=element) == [FalseClaim(2, 3, element)]
    assert claims_of_other_elements(dst=22, src=20, then=5) == [FalseClaim(2, 2, 22)]
    # A MULTIPLY_ADD reads one source element and the factor.
    for factor, src, then, expected in (
        (20, 64, 21, []),
        (20, 30, 31, []),
        (0, 30, 5, [FalseClaim(1, 2, 0)]),
        (20, 0, 5, [FalseClaim(1, 2, 0)]),
        (20, 30, 20, [FalseClaim(2, 3, 20)]),
        (20, 30, 30, [FalseClaim(2, 3, 30)]),
        (64, 30, 5, [FalseClaim(2, 2, 64)]),
    ):
        assert claims_of_other_elements(64, src, then, factor) == expected


def test_a_false_claim_is_told_in_a_sentence() -> None:
    assert str(FalseClaim(3, 8, 17)) == (
        "instruction 8 claims to be independent, but may overtake instruction 3, with which it "
        "shares ACC[17]"
    )
    assert str(FalseClaim(3, 3, 17)) == (
        "instruction 3 writes ACC[17], one of its own parameters, part of its own table or its own "
        "factor"
    )
