"""The estimate's start and end of each instruction equal the design's, to the cycle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.isa import (
    Alu,
    AluOp,
    Finish,
    Gemm,
    Instruction,
    Load,
    Memory,
    Store,
    Uop,
    instruction_set,
)
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.trace.perfetto import Timeline
from amaranth_vta.sim.trace.timeline import Span

CONFIG = PRESETS["tiny-extended"]


class Recorder(Timeline):
    spans: list[Span]

    def add(
        self,
        config: Config,
        words: list[int],
        spans: Iterable[Span],
        cycles: int,
        estimated: bool = False,
    ) -> None:
        self.spans = sorted(spans, key=lambda span: (span.index, span.begin, span.lane))


def run(device_name: str, dram: str, program: list[Instruction]) -> tuple[list[Span], int | None]:
    memory = np.zeros(16384, np.uint8)
    memory[64:72].view("<u4")[1] = instruction_set(CONFIG).encode_uop(Uop(dst=32, src=64))
    image = ProgramImage.assemble(CONFIG, memory, 8192, program)
    recorder = Recorder()
    device = open_device(device_name, CONFIG, image.dram.size, dram=dram, timeline=recorder)
    device.write(0, image.dram)
    result = device.run(image.insn_addr, image.insn_count)
    assert result.fault is None
    return recorder.spans, result.cycles


def looked_up(n: int) -> list[Instruction]:
    """Lookups in two tables; the second table is used again unchanged, and once more after a
    reload.
    """
    first = Alu(uop_begin=1, uop_end=2, iter_in=n, dst_factor_in=1, alu_opcode=AluOp.LOOKUP)
    second = replace(first, iter_out=2, src_factor_out=1)
    return [first, second, second, Load(memory=Memory.ACC, sram_base=70, x_size=2), second]


def moved(n: int) -> list[Instruction]:
    """Two rounds of load, GEMM, ALU and store that wait for one another, with padding, several rows
    and changes of the unit.
    """
    loops = {"uop_end": 1, "iter_out": 2, "iter_in": n, "dst_factor_in": 1}
    program: list[Instruction] = [
        Load(memory=Memory.UOP, x_size=2, dram_base=16),
        Load(memory=Memory.WGT, x_size=1),
    ]
    for number in range(2):
        later = int(number > 0)
        program += [
            Load(memory=Memory.INP, x_size=n, y_size=3, x_stride=2 * n, x_pad_0=1, y_pad_1=1),
            Load(memory=Memory.INP, sram_base=64, x_size=4, push_next=1, pop_next=later),
            Gemm(**loops, src_factor_in=1, pop_prev=1, pop_next=later, push_prev=1),
            Alu(**loops, alu_opcode=AluOp.ADD, use_immediate=1, immediate=1),
            Alu(**loops, alu_opcode=AluOp.REQUANTIZE, push_next=1),
            *looked_up(n),
            Store(x_size=n, y_size=2, x_stride=3 * n, dram_base=512, pop_prev=1, push_prev=1),
        ]
    return [*program, Finish()]


@pytest.mark.parametrize("dram", ["ideal", "ddr"])
def test_instructions_begin_and_end_when_those_of_the_design_do(dram: str) -> None:
    design, cycles = run("pysim", dram, moved(8))
    estimated, estimated_cycles = run("estimate", dram, moved(8))
    assert estimated == design
    assert estimated_cycles == cycles
