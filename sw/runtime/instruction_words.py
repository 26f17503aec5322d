"""Instructions as arrays of 64-bit words, to read a field of many instructions at once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config

# uint64 (instructions, 2), low word first.
Words = npt.NDArray[np.uint64]
# int64 (instructions,).
Counts = npt.NDArray[np.int64]
# Fields in which any value is legal, except in a LOAD that sets a padding value.
_ANY_VALUE = (
    *("sram_base", "dram_base", "y_size", "x_size", "x_stride"),
    *("uop_begin", "uop_end", "iter_out", "iter_in", "immediate"),
    *("dst_factor_out", "dst_factor_in", "src_factor_out", "src_factor_in"),
    *("wgt_factor_out", "wgt_factor_in"),
)


def instruction_words(instructions: Iterable[int]) -> Words:
    """Instructions of 128 bits as an array (instructions, 2), low word first."""
    stream = b"".join([bits.to_bytes(isa.INSTRUCTION_BYTES, "little") for bits in instructions])
    return np.frombuffer(stream, np.dtype("<u8")).reshape(-1, 2)


def field_of(words: Words, field: isa.Field) -> npt.NDArray[np.int64]:
    """int64 (instructions,): the value of an unsigned ``field`` in each of ``words``."""
    word, offset = divmod(field.offset, isa.WORD_WIDTH)
    mask = np.uint64((1 << field.width) - 1)
    return (words[:, word] >> np.uint64(offset) & mask).astype(np.int64)


def memories_of(words: Words, layout: isa.Layout, extensions: frozenset[str]) -> Counts:
    """int64 (instructions,): the `isa.Memory` of LOADs and STOREs, or an `isa.Padding`."""
    numbers = field_of(words, layout["memory"])
    if "wgt_4bit" not in extensions:
        return numbers
    packed = numbers == isa.memory_id(isa.Memory.WGT_4BIT)
    packed &= field_of(words, layout["opcode"]) == isa.Opcode.LOAD
    return np.where(packed, isa.Memory.WGT_4BIT, numbers)


def element_bytes(config: Config) -> Counts:
    """int64, indexed by `isa.Memory`: bytes of an element in DRAM; 0 for an `isa.Padding`, with
    which a LOAD moves no data.
    """
    result = np.zeros(max(isa.Memory) + 1, np.int64)
    for memory in isa.transferred_memories(config.extensions):
        result[memory] = config.memory(memory).element_bytes
    return result


def without_fields(words: Words, fields: Iterable[isa.Field]) -> Words:
    """``words`` with zeros in ``fields``."""
    kept = np.full(2, (1 << isa.WORD_WIDTH) - 1, np.uint64)
    for field in fields:
        word, offset = divmod(field.offset, isa.WORD_WIDTH)
        kept[word] &= ~np.uint64((1 << field.width) - 1 << offset)
    return words & kept


def uops_of(rows: Words, layout: isa.Layout) -> Counts:
    """Number of micro-ops that each GEMM or ALU instruction executes, over all iterations."""
    count = field_of(rows, layout["uop_end"]) - field_of(rows, layout["uop_begin"])
    loops = field_of(rows, layout["iter_out"]) * field_of(rows, layout["iter_in"])
    return np.maximum(count, 0) * loops


def legal_words(instructions: isa.InstructionSet, words: Words) -> Words:
    """The legal instructions of ``words``, in order.

    Most instructions differ only in addresses and counts, which do not affect legality.
    """
    kinds = words.copy()
    opcodes = field_of(words, instructions.layouts[isa.Opcode.FINISH]["opcode"])
    for opcode, layout in instructions.layouts.items():
        rows = opcodes == opcode
        if "memory" in layout:
            # A LOAD that sets a padding value must have zeros in these fields.
            rows &= field_of(words, layout["memory"]) < min(isa.Padding)
        ignored = [layout[name] for name in _ANY_VALUE if name in layout]
        kinds[rows] = without_fields(words[rows], ignored)
    legal: dict[tuple[int, int], bool] = {}
    result = np.empty(len(words), np.bool_)
    for index, (low, high) in enumerate(kinds.tolist()):
        kind = low, high
        if kind not in legal:
            legal[kind] = instructions.problem(low | high << isa.WORD_WIDTH) is None
        result[index] = legal[kind]
    return words[result]
