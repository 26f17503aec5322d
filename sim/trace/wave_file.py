"""Wave files of simulators, VCD or FST: the format of a path, and the signals of a file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from amaranth_vta.errors import VtaError

VCD, FST = "vcd", "fst"
WAVE_FORMATS = (VCD, FST)
# Separates scopes and signals in full names, as in GTKWave and Surfer.
_SEPARATOR = "."
# Blocks of an FST file, and entries of its hierarchy, that matter here.
_HIERARCHY_LZ4 = 6
_SCOPE, _UPSCOPE, _ATTRIBUTE, _ATTRIBUTE_END = 254, 255, 252, 253
# The smallest match and the largest length in a token of the LZ4 block format.
_SHORTEST, _NIBBLE, _BYTE = 4, 15, 255


class WaveError(VtaError, ValueError):
    """A wave file that cannot be read."""


@dataclass(frozen=True)
class WaveSignal:
    """A signal of a wave file: its ``scope``, a path joined by dots, its ``name`` there without the
    range of its bits, and the number of its ``bits``. With ``is_text`` its values are texts: the
    names of an enumeration.
    """

    scope: str
    name: str
    bits: int
    is_text: bool = False

    @property
    def path(self) -> str:
        return f"{self.scope}{_SEPARATOR}{self.name}"


def wave_format(path: str | Path) -> str:
    """The format of the wave file at ``path``: FST if its name ends with ``.fst``, else VCD."""
    return FST if Path(path).suffix == f".{FST}" else VCD


def signals_of(path: Path) -> list[WaveSignal]:
    """The signals of a wave file in its order, from its header; raises `WaveError`."""
    with path.open("rb") as file:
        try:
            return list(_of_fst(file) if wave_format(path) == FST else _of_vcd(file))
        except (IndexError, ValueError, OSError, OverflowError, struct.error) as error:
            raise WaveError(f"{path} is not a complete wave file: {error}") from None


def _of_vcd(file: BinaryIO) -> Iterator[WaveSignal]:
    scopes: list[str] = []
    for line in file:
        words = line.decode().split()
        match words[:1]:
            case ["$scope"]:
                scopes.append(words[2])
            case ["$upscope"]:
                scopes.pop()
            case ["$var"]:
                yield WaveSignal(
                    _SEPARATOR.join(scopes), words[4], int(words[2]), words[1] == "string"
                )
            case ["$enddefinitions"]:
                return
    raise ValueError("its header does not end")


def _of_fst(file: BinaryIO) -> Iterator[WaveSignal]:
    """A file of Verilator's writer: blocks, each with a type and its size."""
    while head := file.read(9):
        kind, size = struct.unpack(">BQ", head)
        if kind == _HIERARCHY_LZ4:
            yield from _of_hierarchy(file.read(size - 8))
            return
        file.seek(size - 8, 1)
    raise ValueError("it has no hierarchy")


def _of_hierarchy(block: bytes) -> Iterator[WaveSignal]:
    (size,) = struct.unpack_from(">Q", block)
    text = lz4_decompressed(block[8:])
    if len(text) != size:
        raise ValueError(f"its hierarchy has {len(text)} bytes, not {size}")
    at = 0
    scopes: list[str] = []

    def string() -> str:
        nonlocal at
        end = text.index(b"\0", at)
        found, at = text[at:end].decode(), end + 1
        return found

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = text[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < size:
        kind, at = text[at], at + 1
        if kind == _SCOPE:
            at += 1  # the type of the scope
            scopes.append(string())
            string()  # the module
        elif kind == _UPSCOPE:
            scopes.pop()
        elif kind == _ATTRIBUTE:
            at += 2  # its type and subtype
            string()
            number()
        elif kind != _ATTRIBUTE_END:
            at += 1  # the direction of the port
            name, bits, _ = string(), number(), number()
            yield WaveSignal(_SEPARATOR.join(scopes), name.partition(" ")[0], bits)


def lz4_decompressed(block: bytes) -> bytes:
    """The bytes of a ``block`` in the LZ4 block format; raises `IndexError` if it is cut off."""
    out = bytearray()
    at = 0

    def rest(length: int) -> int:
        nonlocal at
        if length == _NIBBLE:
            while True:
                byte, at = block[at], at + 1
                length += byte
                if byte < _BYTE:
                    break
        return length

    while at < len(block):
        token, at = block[at], at + 1
        literals = rest(token >> 4)
        out += block[at : at + literals]
        at += literals
        if at == len(block):
            break
        distance, at = block[at] | block[at + 1] << 8, at + 2
        for _ in range(rest(token & _NIBBLE) + _SHORTEST):
            out.append(out[-distance])  # a match may overlap itself
    return bytes(out)
