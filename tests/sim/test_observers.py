"""Races are reported exactly where no token orders what two modules share."""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import Finish, Gemm, Instruction, Load, Memory, Store
from amaranth_vta.sim.functional import FunctionalDevice
from amaranth_vta.sim.image import ProgramImage
from amaranth_vta.sim.observers import Race

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
        # A token given too early orders nothing that comes later.
        (
            [load(sram_base=9, push_next=1), load(), uops(), gemm(pop_prev=1)],
            [Race(1, 3, "INP", 0)],
        ),
        # The second token taken is the second given.
        ([load(sram_base=9, push_next=1), load(push_next=1), uops(), gemm(pop_prev=1)],
         [Race(1, 3, "INP", 0)]),
        ([load(sram_base=9, push_next=1), load(push_next=1), uops(),
          gemm(uop_end=0, pop_prev=1), gemm(pop_prev=1)], []),
        # A write after a read.
        ([load(push_next=1), uops(), gemm(pop_prev=1, push_prev=1), load(pop_next=1)], []),
        ([load(push_next=1), uops(), gemm(pop_prev=1), load()], [Race(2, 3, "INP", 0)]),
        # What a reset does not read is not shared.
        ([load(), uops(), gemm(reset=1)], []),
        # Elements that do not meet need no order; nor do two readers.
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


def test_a_race_is_told_in_a_sentence() -> None:
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
