"""Steady-state rates: micro-ops, vectors and words per cycle.

Each rate is the difference between two programs that repeat the same work a different number of
times, so that the launch and the initial latency cancel out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Alu, AluOp, Finish, Gemm, Instruction, Load, Memory, Store
from amaranth_vta.hw.tiles import TileMemory
from amaranth_vta.sim.devices import RunOptions
from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sw.runtime.instruction_words import instruction_words
from amaranth_vta.sw.runtime.work import work

from .measurement import MEMORY_BYTES, Measurement, difference, image_of, run_compared

KINDS = ("gemm", "alu", "load", "store")
_UOPS = 16
_ROW_WORDS = 8
_REPEATS = (4, 12)


@dataclass(frozen=True)
class _Case:
    """The ``instructions`` of one repetition, a lower bound on their ``compute`` cycles, and the
    bus words that they read and write.
    """

    name: str
    target: float
    instructions: list[Instruction]
    # The contents of the micro-op buffer.
    uops: list[isa.Uop]
    compute: int = 0
    words_read: float = 0
    words_written: float = 0

    def bound_cycles(self, repetitions: int, dram: str) -> int:
        """Lower bound on the cycles that ``repetitions`` more repetitions add to a program."""
        read, written = (
            int(words * repetitions) for words in (self.words_read, self.words_written)
        )
        # Either program may end just before the memory stalls, so this counts as two runs.
        bus = memory_timing(dram).least_cycles(read, written, runs=2)
        return max(self.compute * repetitions, bus)


def measure_rates(kind: str, config: Config, options: RunOptions) -> Iterator[Measurement]:
    """Yields the measurements of ``kind``, one of `KINDS`."""
    cases = {"gemm": _gemm, "alu": _alu, "load": _load, "store": _store}[kind]
    for case in cases(config, options.dram):
        yield _measure(case, kind, config, options)


def _measure(case: _Case, kind: str, config: Config, options: RunOptions) -> Measurement:
    cycles: list[int | None] = []
    mismatches, seconds = 0, 0.0
    works, counters = [], []
    for repeats in _REPEATS:
        if options.timeline is not None:
            options.timeline.begin(f"{kind} {case.name}, {repeats} times")
        image = _image(case, config, repeats)
        device = options.open(config, image.dram.size)
        result, differ = run_compared(config, image, device)
        mismatches += differ
        seconds += result.seconds
        cycles.append(result.cycles)
        counters.append(result.counters)
        works.append(work(config, instruction_words(image.instruction_bits())))
    return Measurement(
        case.name,
        kind,
        works[1].macs - works[0].macs,
        difference(*cycles),
        case.bound_cycles(_REPEATS[1] - _REPEATS[0], options.dram),
        case.target,
        works[1].bytes_loaded - works[0].bytes_loaded,
        works[1].bytes_stored - works[0].bytes_stored,
        mismatches,
        seconds,
        {name: count - counters[0][name] for name, count in counters[1].items()},
        result.estimated,
    )


def _image(case: _Case, config: Config, repeats: int) -> ProgramImage:
    program: list[Instruction] = [
        Load(memory=Memory.ACC, x_size=config.acc.depth, y_size=0, y_pad_0=1),
        Load(memory=Memory.INP, x_size=config.inp.depth, y_size=0, y_pad_0=1),
        Load(memory=Memory.WGT, x_size=config.wgt.depth, y_size=0, y_pad_0=1, push_next=1),
        Load(memory=Memory.UOP, x_size=len(case.uops), pop_prev=1, push_next=1),
        Store(x_size=0, pop_prev=1),
        *case.instructions * repeats,
        Finish(),
    ]
    return image_of(config, case.uops, program)


def _gemm(config: Config, _: str) -> Iterator[_Case]:
    zeros = [isa.Uop()] * _UOPS
    apart = [isa.Uop(dst=n, src=n, wgt=n % config.wgt.depth) for n in range(_UOPS)]
    for name, uops in (("one accumulator", zeros), ("accumulators in turn", apart)):
        loops = {"uop_end": _UOPS, "iter_out": 8, "iter_in": 8}
        yield _Case(name, 0.99, [Gemm(**loops)], uops, _UOPS * 64)
        short: list[Instruction] = [Gemm(uop_end=_UOPS)] * 16
        yield _Case(f"{name}, {_UOPS} an instruction", 0.95, short, uops, _UOPS * 16)


def _alu(config: Config, _: str) -> Iterator[_Case]:
    half = config.acc.depth // 2
    vectors = half - isa.REQUANTIZE_PARAMETERS
    uops = [isa.Uop(dst=0, src=half)]
    loops = {"uop_end": 1, "iter_in": vectors, "dst_factor_in": 1}
    add = {"alu_opcode": AluOp.ADD, **loops}
    yield _Case("immediate", 0.95, [Alu(use_immediate=1, immediate=3, **add)], uops, vectors)
    for name, source in (("register in the other bank", half), ("register in one bank", 0)):
        # With both operands in one bank a conflict may cost a cycle.
        target = 0.95 if source and config.overlap else 0.48
        uops = [isa.Uop(dst=0, src=source)]
        yield _Case(name, target, [Alu(src_factor_in=1, **add)], uops, vectors)
    if config.requantize:
        requantize = Alu(alu_opcode=AluOp.REQUANTIZE, **loops)
        yield _Case("requantization", 0.9, [requantize], [isa.Uop(dst=0, src=half)], vectors)


def _load(config: Config, dram: str) -> Iterator[_Case]:
    for memory in (Memory.INP, Memory.WGT):
        for name, fields, words in _transfers(config, config.memory(memory)):
            yield _Case(
                f"{memory.name} {name}",
                0.9 if dram == "ddr" else 0.95,
                [Load(memory=memory, **fields)],
                [isa.Uop()],
                words_read=words,
            )


def _store(config: Config, dram: str) -> Iterator[_Case]:
    for name, fields, words in _transfers(config, config.out):
        target = 0.9 if dram == "ddr" else 0.95
        yield _Case(name, target, [Store(**fields)], [isa.Uop()], words_written=words)


def _transfers(config: Config, memory: TileMemory) -> Iterator[tuple[str, dict[str, int], float]]:
    """The name and fields of each transfer, and the number of bus words."""
    size, bus = memory.element_bytes, config.bus_bytes
    # As many elements as the scratchpad holds, in an unused part of memory.
    place = MEMORY_BYTES // 4
    elements = min(memory.depth, place // size)
    whole = {"dram_base": place // size, "x_size": elements, "y_size": 1}
    yield "whole", whole, elements * size / bus
    row = max(_ROW_WORDS * bus // size, 1)
    rows = min(elements // row, place // (2 * row * size))
    strided = {
        "dram_base": place // size,
        "x_size": row,
        "y_size": rows,
        "x_stride": 2 * row,
    }
    yield f"rows of {row * size // bus} words", strided, rows * row * size / bus
