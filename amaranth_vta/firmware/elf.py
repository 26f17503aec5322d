"""Reads the memory images of an executable file: `loaded_images`."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from amaranth_vta.hw.boards.protocol import WORD_BYTES

# Of the System V ABI: offset of the program headers in the header, and their entries.
_HEADERS = struct.Struct("<28xI10xHH")
_ENTRY = struct.Struct("<8I")
_LOAD = 1


def loaded_images(elf: bytes, memories: Sequence[range]) -> list[bytes]:
    """For each of ``memories``, ranges of addresses, the bytes that the 32-bit little-endian
    executable ``elf`` loads from its first address on, with gaps filled with zeros, up to a whole
    word.

    Raises `ValueError` if it loads bytes outside all of them.
    """
    images = [bytearray() for _ in memories]
    at, size, count = _HEADERS.unpack_from(elf)
    for entry in range(count):
        kind, offset, _, address, stored, *_ = _ENTRY.unpack_from(elf, at + entry * size)
        if kind != _LOAD or not stored:
            continue
        inside = [address in memory and address + stored <= memory.stop for memory in memories]
        if not any(inside):
            raise ValueError(f"a segment of {stored} bytes at {address:#x} is in no memory")
        number = inside.index(True)
        image, start = images[number], address - memories[number].start
        image.extend(bytes(max(0, start + stored - len(image))))
        image[start : start + stored] = elf[offset : offset + stored]
    return [
        bytes(image.ljust(-(-len(image) // WORD_BYTES) * WORD_BYTES, b"\0")) for image in images
    ]
