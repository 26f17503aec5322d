"""Counts of the events in an instruction stream that consume energy: `events`."""

from __future__ import annotations

from collections import Counter

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config

from .instruction_words import (
    Words,
    element_bytes,
    field_of,
    legal_words,
    memories_of,
    uops_of,
)

# Number of events by name, which do not depend on timing:
#
# multiply       micro-ops of GEMM and MULTIPLY that multiply
# depthwise      micro-ops of DEPTHWISE
# reset          micro-ops of GEMM that only set an accumulator to zero
# accumulate     micro-ops that multiply and read the accumulator to which they add
# alu_OPERATION  micro-ops of the ALU, by `alu_event`
# alu_source     micro-ops of the ALU that read a second accumulator, instead of an immediate
# load_MEMORY    elements of a scratchpad that LOADs and FORWARDs write, padding excluded
# store          elements that STOREs and FORWARDs read from accumulators
# bytes_read     bytes read from DRAM, instructions included
# bytes_written  bytes written to DRAM
Events = Counter[str]
# Operations whose second operand, parameters or a table, is read once for many micro-ops.
_PARAMETERS = (isa.AluOp.REQUANTIZE, isa.AluOp.LOOKUP)


def alu_event(operation: isa.AluOp) -> str:
    """The event of a micro-op with this operation."""
    return f"alu_{operation.name.lower()}"


def events(config: Config, words: Words) -> Events:
    """The events of a stream of instructions that runs to completion; illegal ones are fetched but
    do nothing.
    """
    instructions = isa.instruction_set(config)
    legal = legal_words(instructions, words)
    opcodes = field_of(legal, instructions.layouts[isa.Opcode.FINISH]["opcode"])
    found: Events = Counter(bytes_read=len(words) * isa.INSTRUCTION_BYTES)
    for opcode, layout in instructions.layouts.items():
        rows = legal[opcodes == opcode]
        match opcode:
            case isa.Opcode.LOAD | isa.Opcode.STORE:
                found += _transfers(config, opcode, layout, rows)
            case isa.Opcode.ALU:
                found += _operations(layout, rows)
            case isa.Opcode.FINISH:
                pass
            case _:
                found += _products(opcode, layout, rows)
    return found


def _transfers(config: Config, opcode: isa.Opcode, layout: isa.Layout, rows: Words) -> Events:
    found: Events = Counter()
    memories = memories_of(rows, layout, config.extensions)
    elements = field_of(rows, layout["x_size"]) * field_of(rows, layout["y_size"])
    sizes = element_bytes(config)
    for memory in isa.transferred_memories(config.extensions):
        count = int(elements[memories == memory].sum())
        if opcode == isa.Opcode.LOAD:
            found[f"load_{isa.filled_by(memory).name.lower()}"] += count
            found["bytes_read"] += count * int(sizes[memory])
        else:
            found["store"] += count
            # A FORWARD, which is a STORE to INP, stays on the chip.
            if memory is isa.Memory.OUT:
                found["bytes_written"] += count * int(sizes[memory])
            else:
                found[f"load_{memory.name.lower()}"] += count
    return found


def _operations(layout: isa.Layout, rows: Words) -> Events:
    uops, operations = uops_of(rows, layout), field_of(rows, layout["alu_opcode"])
    found: Events = Counter({alu_event(op): int(uops[operations == op].sum()) for op in isa.AluOp})
    read = (field_of(rows, layout["use_immediate"]) == 0) & ~np.isin(operations, _PARAMETERS)
    found["alu_source"] = int(uops[read].sum())
    return found


def _products(opcode: isa.Opcode, layout: isa.Layout, rows: Words) -> Events:
    uops = uops_of(rows, layout)
    count = int(uops.sum())
    if opcode == isa.Opcode.MULTIPLY:
        return Counter(multiply=count)
    if opcode == isa.Opcode.DEPTHWISE:
        added = int(uops[field_of(rows, layout["overwrite"]) == 0].sum())
        return Counter(depthwise=count, accumulate=added)
    reset = int(uops[field_of(rows, layout["reset"]) == 1].sum())
    return Counter(multiply=count - reset, accumulate=count - reset, reset=reset)
