"""Reads the memory image of an executable file: `loaded_image`."""

from __future__ import annotations

import struct

from amaranth_vta.hw.boards.protocol import WORD_BYTES

# Of the System V ABI: offset of the program headers in the header, and their entries.
_HEADERS = struct.Struct("<28xI10xHH")
_ENTRY = struct.Struct("<8I")
_LOAD = 1


def loaded_image(elf: bytes, base: int) -> bytes:
    """The bytes that the 32-bit little-endian executable ``elf`` loads from address ``base`` on,
    with gaps filled with zeros, up to a whole word.

    Raises `ValueError` if it loads bytes below ``base``.
    """
    image = bytearray()
    at, size, count = _HEADERS.unpack_from(elf)
    for number in range(count):
        kind, offset, _, address, stored, *_ = _ENTRY.unpack_from(elf, at + number * size)
        if kind != _LOAD or not stored:
            continue
        start = address - base
        if start < 0:
            raise ValueError(f"a segment at {address:#x} is below {base:#x}")
        image.extend(bytes(max(0, start + stored - len(image))))
        image[start : start + stored] = elf[offset : offset + stored]
    return bytes(image.ljust(-(-len(image) // WORD_BYTES) * WORD_BYTES, b"\0"))
