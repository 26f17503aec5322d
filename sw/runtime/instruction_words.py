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
