"""Instructions and registers as rows of bits, from the tables of `hw.isa` and `hw.registers`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import DEFAULT, PRESETS
from amaranth_vta.hw.registers import REGISTERS

from .svg import Drawing, Theme

_BIT, _HEIGHT, _HEAD, _LEFT, _ROW = 24, 78, 16, 34, 32


@dataclass(frozen=True)
class Field:
    """Bits ``offset`` up to ``offset + width`` of a word."""

    name: str
    offset: int
    width: int


def words() -> Iterator[tuple[str, str, list[Field], int]]:
    """File name, title, fields and width in bits of each instruction and register."""
    instructions = isa.instruction_set(PRESETS[DEFAULT])
    for opcode, layout in instructions.layouts.items():
        fields = [Field(item.name, item.offset, item.width) for item in layout.values()]
        title = f"Fields of {opcode.name}, by bit"
        yield f"isa-{opcode.name.lower()}", title, fields, isa.INSTRUCTION_WIDTH
    uop = [Field(i.name, i.offset, i.width) for i in instructions.uop_layout.values()]
    yield "isa-uop", "Fields of a micro-op, by bit", uop, isa.UOP_WIDTH
    for register in REGISTERS.values():
        if register.bits:
            parts = [Field(part.name, part.offset, part.width) for part in register.bits]
            title = f"Parts of the register {register.name}, by bit"
            yield f"register-{register.name.lower()}", title, parts, register.width


def draw(theme: Theme, title: str, fields: Sequence[Field], width: int) -> Drawing:
    """Rows of 32 bits, the highest bit on the left, the lowest row first."""
    rows = -(-width // _ROW)
    d = Drawing(_LEFT + _BIT * _ROW + 2, rows * (_HEIGHT + _HEAD + 4), title, theme)
    for row in range(rows):
        top = row * (_HEIGHT + _HEAD + 4)
        low = row * _ROW
        d.text(_LEFT - 6, top + _HEAD + _HEIGHT / 2 + 4, str(low), 11, theme.muted, "end")
        d.rect(_LEFT, top + _HEAD, _BIT * _ROW, _HEIGHT, "none", theme.line, radius=3)
        for number, field in enumerate(fields):
            _field(d, field, low, top, theme.hues[number % len(theme.hues)])
    return d


def _field(d: Drawing, field: Field, low: int, top: float, hue: str) -> None:
    begin, end = max(field.offset, low), min(field.offset + field.width, low + _ROW)
    if begin >= end:
        return
    x = _LEFT + _BIT * (low + _ROW - end)
    width = _BIT * (end - begin)
    d.rect(x + 1, top + _HEAD + 1, width - 2, _HEIGHT - 2, d.theme.panel, hue, radius=3)
    for bit in {begin, end - 1}:
        middle = _LEFT + _BIT * (low + _ROW - bit - 0.5)
        d.text(middle, top + _HEAD - 4, str(bit), 9.5, d.theme.muted, "middle")
    color = d.theme.ink
    if len(field.name) * 6.2 < width - 4:
        d.text(x + width / 2, top + _HEAD + _HEIGHT / 2 + 4, field.name, 11, color, "middle")
    else:
        size = 11 if len(field.name) < 13 else 9.5
        at = (x + width / 2 + 4, top + _HEAD + _HEIGHT / 2)
        d.text(*at, field.name, size, color, "middle", turn=-90)
