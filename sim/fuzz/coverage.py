"""Instruction coverage of programs: counts per kind of instruction, flag, and fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from amaranth_vta.hw import isa
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sw.runtime.device import Fault

TOTAL = "all"
# Aspect of an instruction that only exchanges tokens.
EMPTY = "empty"
_TOKENS = ("pop_prev", "pop_next", "push_prev", "push_next")
# Aspects counted per kind of instruction: of all kinds, of transfers, and of GEMM and the ALU.
ASPECTS = (
    (*_TOKENS, EMPTY, "refused", "faulty"),
    ("rows", "stride 0", "stride > 100", "overlapping rows", "padding"),
    ("reset", "immediate", "independent", "several uops", "both loops", "100 iterations"),
)
# Prefix of kinds that count programs ending in a fault, by module and cause.
FAULTS = "fault of "


class Point(NamedTuple):
    """A cell of the coverage table: a kind of instruction and an aspect."""

    kind: str
    aspect: str


def coverage(image: ProgramImage, fault: Fault | None) -> Counter[Point]:
    """Coverage of one program; ``fault`` is the fault at which it ended, if any."""
    found: Counter[Point] = Counter()
    instructions = isa.instruction_set(image.config)
    stream = image.instruction_bits()
    # Most instructions only exchange tokens, and few of those are distinct.
    for bits, count in Counter(stream).items():
        instruction = instructions.decode(bits)
        kind = _kind(instruction)
        found[Point(kind, TOTAL)] += count
        if instructions.problem(bits) is not None:
            found[Point(kind, "refused")] += count
            continue
        for aspect in _aspects(instruction):
            found[Point(kind, aspect)] += count
    if fault is not None:
        found[Point(f"{FAULTS}{fault.module}", fault.cause)] += 1
        if fault.instruction < len(stream):
            found[Point(_kind(instructions.decode(stream[fault.instruction])), "faulty")] += 1
    return found


def _kind(instruction: isa.Instruction) -> str:
    match instruction:
        case isa.SetPadding():
            return f"set padding of {isa.Padding(instruction.memory).name}"
        case isa.Load():
            known = instruction.memory in list(isa.Memory)
            return f"LOAD {isa.Memory(instruction.memory).name if known else 'of no memory'}"
        case isa.Forward():
            return "FORWARD"
        case isa.Alu():
            return isa.AluOp(instruction.alu_opcode).name
        case isa.Unknown():
            return "no opcode"
    return isa.Opcode(instruction.opcode).name


def _aspects(instruction: isa.Instruction) -> Iterator[str]:
    for name in _TOKENS:
        if getattr(instruction, name):
            yield name
    match instruction:
        case isa.SetPadding():
            pass
        case isa.Load() | isa.Store() | isa.Forward():
            yield from _of_transfer(instruction)
        case isa.Gemm() | isa.Alu():
            yield from _of_loops(instruction)


def _of_transfer(transfer: isa.Load | isa.Store | isa.Forward) -> Iterator[str]:
    if not transfer.elements:
        yield EMPTY
        return
    if transfer.y_size > 1:
        yield "rows"
        if transfer.x_stride == 0:
            yield "stride 0"
        if transfer.x_stride > 100:
            yield "stride > 100"
        if transfer.x_stride < transfer.x_size:
            yield "overlapping rows"
    if transfer.elements != transfer.x_size * transfer.y_size:
        yield "padding"


def _of_loops(loops: isa.Gemm | isa.Alu) -> Iterator[str]:
    if not loops.uops:
        yield EMPTY
        return
    if isinstance(loops, isa.Gemm) and loops.reset:
        yield "reset"
    if isinstance(loops, isa.Alu) and loops.use_immediate:
        yield "immediate"
    if loops.independent:
        yield "independent"
    if loops.uop_end - loops.uop_begin > 1:
        yield "several uops"
    if loops.iter_out > 1 and loops.iter_in > 1:
        yield "both loops"
    if loops.iter_out * loops.iter_in >= 100:
        yield "100 iterations"
