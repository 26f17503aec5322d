from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sw.runtime.events import Events, alu_event, events
from amaranth_vta.sw.runtime.instruction_words import instruction_words

_EXTENDED = PRESETS["pynq-extended"]


def events_of(*instructions: isa.Instruction) -> Events:
    encode = isa.instruction_set(_EXTENDED).encode
    return events(_EXTENDED, instruction_words(encode(instruction) for instruction in instructions))


def test_products_read_accumulators_unless_they_overwrite_them() -> None:
    found = events_of(
        isa.Gemm(uop_end=3, iter_out=5),
        isa.Gemm(uop_end=2, reset=1),
        isa.Multiply(uop_end=7),
        isa.Depthwise(uop_end=4),
        isa.Depthwise(uop_end=6, overwrite=1),
    )
    assert found["multiply"] == 15 + 7
    assert found["depthwise"] == 10
    assert found["reset"] == 2
    assert found["accumulate"] == 15 + 4


def test_operations_count_by_kind_and_read_two_accumulators_without_an_immediate() -> None:
    found = events_of(
        isa.Alu(uop_end=4, iter_in=2, alu_opcode=isa.AluOp.ADD),
        isa.Alu(uop_end=3, alu_opcode=isa.AluOp.SHR, use_immediate=1, immediate=4),
        isa.Alu(uop_end=5, alu_opcode=isa.AluOp.REQUANTIZE),
    )
    assert (found["alu_add"], found["alu_shr"], found["alu_requantize"]) == (8, 3, 5)
    assert found["alu_source"] == 8


def test_transfers_count_elements_without_padding_by_scratchpad() -> None:
    found = events_of(
        isa.Load(memory=isa.Memory.WGT, y_size=3, x_size=5, x_pad_0=2, y_pad_1=1),
        isa.Load(memory=isa.Memory.ACC_8BIT, x_size=4),
        isa.Store(y_size=2, x_size=3),
        isa.Forward(y_size=1, x_size=2),
    )
    assert (found["load_wgt"], found["load_acc"], found["load_inp"]) == (15, 4, 2)
    assert found["store"] == 6 + 2
    assert found["bytes_read"] == 4 * 16 + 15 * 256 + 4 * 16
    assert found["bytes_written"] == 6 * 16


@pytest.mark.parametrize("preset", PRESETS)
def test_events_are_those_of_the_instructions_decoded_one_by_one(preset: str) -> None:
    config = PRESETS[preset]
    instructions, rng = isa.instruction_set(config), np.random.default_rng(1)
    # Sparse bits, many of which are legal.
    words = [rng.integers(0, 2**63, (3000, 2), np.uint64) for _ in range(4)]
    sparse = words[0] & words[1] & words[2] & words[3]
    sparse[:, 0] = sparse[:, 0] & ~np.uint64(7) | rng.integers(0, 8, 3000, np.uint64)
    expected: Events = Counter(bytes_read=len(sparse) * isa.INSTRUCTION_BYTES)
    for low, high in sparse.tolist():
        bits = low | high << 64
        if instructions.problem(bits) is None:
            expected += _decoded(config, instructions.decode(bits))
    assert events(config, sparse) == +expected


def _decoded(config: Config, instruction: isa.Instruction) -> Events:
    match instruction:
        case isa.SetPadding() | isa.Finish():
            return Counter()
        case isa.Load():
            memory = isa.Memory(instruction.memory)
            count = instruction.x_size * instruction.y_size
            size = config.memory(memory).element_bytes
            name = isa.filled_by(memory).name.lower()
            return Counter({f"load_{name}": count, "bytes_read": count * size})
        case isa.Forward():
            count = instruction.x_size * instruction.y_size
            return Counter(store=count, load_inp=count)
        case isa.Store():
            count = instruction.x_size * instruction.y_size
            return Counter(store=count, bytes_written=count * config.out.element_bytes)
        case isa.Alu():
            op = isa.AluOp(instruction.alu_opcode)
            reads = not instruction.use_immediate and op not in (
                isa.AluOp.REQUANTIZE,
                isa.AluOp.LOOKUP,
            )
            return Counter(
                {alu_event(op): instruction.uops, "alu_source": reads * instruction.uops}
            )
        case isa.Depthwise():
            kept = instruction.uops * (not instruction.overwrites)
            return Counter(depthwise=instruction.uops, accumulate=kept)
        case isa.Gemm() if instruction.reset:
            return Counter(reset=instruction.uops)
        case isa.Gemm():
            kept = instruction.uops * (not instruction.overwrites)
            return Counter(multiply=instruction.uops, accumulate=kept)
    raise AssertionError(instruction)
