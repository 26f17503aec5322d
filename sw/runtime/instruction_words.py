"""Instructions as arrays of 64-bit words, to read a field of many instructions at once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa

# uint64 (instructions, 2), low word first.
Words = npt.NDArray[np.uint64]


def instruction_words(instructions: Iterable[int]) -> Words:
    """Instructions of 128 bits as an array (instructions, 2), low word first."""
    stream = b"".join([bits.to_bytes(isa.INSTRUCTION_BYTES, "little") for bits in instructions])
    return np.frombuffer(stream, np.dtype("<u8")).reshape(-1, 2)


def field_of(words: Words, field: isa.Field) -> npt.NDArray[np.int64]:
    """int64 (instructions,): the value of an unsigned ``field`` in each of ``words``."""
    word, offset = divmod(field.offset, isa.WORD_WIDTH)
    mask = np.uint64((1 << field.width) - 1)
    return (words[:, word] >> np.uint64(offset) & mask).astype(np.int64)


def without_fields(words: Words, fields: Iterable[isa.Field]) -> Words:
    """``words`` with zeros in ``fields``."""
    kept = np.full(2, (1 << isa.WORD_WIDTH) - 1, np.uint64)
    for field in fields:
        word, offset = divmod(field.offset, isa.WORD_WIDTH)
        kept[word] &= ~np.uint64((1 << field.width) - 1 << offset)
    return words & kept
