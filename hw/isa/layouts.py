"""Layouts of instructions and micro-ops: width and position of each field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .operations import Opcode

INSTRUCTION_WIDTH = 128
INSTRUCTION_BYTES = INSTRUCTION_WIDTH // 8
WORD_WIDTH = 64
OPCODE_WIDTH = 3
UOP_WIDTH = 32
SRAM_BASE_WIDTH = 16
DRAM_BASE_WIDTH = 32
SIZE_WIDTH = 16
PAD_WIDTH = 4
ITERATION_WIDTH = 14
IMMEDIATE_WIDTH = 16


@dataclass(frozen=True)
class Field:
    """``width`` bits from bit ``offset`` up."""

    name: str
    offset: int
    width: int
    signed: bool = False

    def insert(self, value: int) -> int:
        """``value`` shifted to the field's position; raises `EncodingError` if it does not fit."""
        low, high = (
            (-1 << self.width - 1, 1 << self.width - 1) if self.signed else (0, 1 << self.width)
        )
        if not low <= value < high:
            raise EncodingError(f"{self.name} = {value} is not within {low} to {high - 1}")
        return (value & (1 << self.width) - 1) << self.offset

    def extract(self, bits: int) -> int:
        """The field's value in ``bits``."""
        value = bits >> self.offset & (1 << self.width) - 1
        return value - (1 << self.width) if self.signed and value >> self.width - 1 else value


class EncodingError(ValueError):
    """A value that does not fit its field."""


Layout = Mapping[str, Field]
_HEAD = (
    ("opcode", OPCODE_WIDTH),
    ("pop_prev", 1),
    ("pop_next", 1),
    ("push_prev", 1),
    ("push_next", 1),
)
_MEMORY = (
    ("memory", 3),
    ("sram_base", SRAM_BASE_WIDTH),
    ("dram_base", DRAM_BASE_WIDTH),
    ("reserved", 6),
    ("y_size", SIZE_WIDTH),
    ("x_size", SIZE_WIDTH),
    ("x_stride", SIZE_WIDTH),
    ("y_pad_0", PAD_WIDTH),
    ("y_pad_1", PAD_WIDTH),
    ("x_pad_0", PAD_WIDTH),
    ("x_pad_1", PAD_WIDTH),
)
_SIGNED = frozenset({"immediate"})


def _place(items: Iterable[tuple[str, int]]) -> dict[str, Field]:
    layout, offset = {}, 0
    for name, width in items:
        if offset < WORD_WIDTH < offset + width:
            offset = WORD_WIDTH
        layout[name] = Field(name, offset, width, name in _SIGNED)
        offset += width
    return layout


def _with_flag(layout: dict[str, Field], name: str) -> dict[str, Field]:
    """Add a one-bit field to ``layout``: the highest unused bit of word 1, else of word 0.

    Every configuration that fits has an unused bit: the widths of GEMM's fields in the two words
    are never both even, so they cannot fill both words; nor can ALU's.
    """
    used = sum((1 << item.width) - 1 << item.offset for item in layout.values())
    offset = next(
        bit
        for word in (1, 0)
        for bit in reversed(range(word * WORD_WIDTH, (word + 1) * WORD_WIDTH))
        if not used >> bit & 1
    )
    return {**layout, name: Field(name, offset, 1)}


def instruction_layouts(
    index_widths: Mapping[str, int], extensions: frozenset[str]
) -> dict[Opcode, Layout]:
    """Layout of each instruction on a machine with ``extensions``, given log2 of the depths of
    ``uop``, ``inp``, ``wgt`` and ``acc``.
    """
    uop, inp, wgt, acc = (index_widths[name] for name in ("uop", "inp", "wgt", "acc"))
    loops = (
        ("reset", 1),
        ("uop_begin", uop),
        ("uop_end", uop + 1),
        ("iter_out", ITERATION_WIDTH),
        ("iter_in", ITERATION_WIDTH),
        ("dst_factor_out", acc),
        ("dst_factor_in", acc),
    )
    gemm = (
        ("src_factor_out", inp),
        ("src_factor_in", inp),
        ("wgt_factor_out", wgt),
        ("wgt_factor_in", wgt),
    )
    alu = (
        ("src_factor_out", acc),
        ("src_factor_in", acc),
        ("alu_opcode", 3),
        ("use_immediate", 1),
        ("immediate", IMMEDIATE_WIDTH),
    )
    layouts = {
        Opcode.LOAD: _place(_HEAD + _MEMORY),
        Opcode.STORE: _place(_HEAD + _MEMORY),
        Opcode.GEMM: _place(_HEAD + loops + gemm),
        Opcode.FINISH: _place(_HEAD),
        Opcode.ALU: _place(_HEAD + loops + alu),
    }
    if "overlap" in extensions:
        for opcode in (Opcode.GEMM, Opcode.ALU):
            layouts[opcode] = _with_flag(layouts[opcode], "independent")
    if "overwrite" in extensions:
        layouts[Opcode.MULTIPLY] = layouts[Opcode.GEMM]
    if "depthwise" in extensions:
        # DEPTHWISE never resets; the bit of ``reset`` is ``overwrite`` instead.
        layouts[Opcode.DEPTHWISE] = {
            field.name: field
            for field in (
                replace(field, name="overwrite") if name == "reset" else field
                for name, field in layouts[Opcode.GEMM].items()
            )
        }
    return dict(layouts)


def uop_layout(index_widths: Mapping[str, int]) -> Layout:
    """Layout of a micro-op, given index widths as for `instruction_layouts`."""
    inp, wgt, acc = (index_widths[name] for name in ("inp", "wgt", "acc"))
    return _place((("dst", acc), ("src", max(acc, inp)), ("wgt", wgt)))


def encoding_problem(index_widths: Mapping[str, int]) -> str | None:
    """Which encoding is too wide, given log2 of the depths of ``uop``, ``inp``, ``wgt`` and
    ``acc``; None if all fit.
    """
    uop = uop_layout(index_widths)
    bits = sum(item.width for item in uop.values())
    if bits > UOP_WIDTH:
        widths = " + ".join(f"{name} {item.width}" for name, item in uop.items())
        return f"a micro-op would need {bits} bits ({widths}) of {UOP_WIDTH}"
    for opcode in (Opcode.GEMM, Opcode.ALU):
        last = list(instruction_layouts(index_widths, frozenset())[opcode].values())[-1]
        if last.offset + last.width > INSTRUCTION_WIDTH:
            return (
                f"{opcode.name} would need {last.offset + last.width} bits of {INSTRUCTION_WIDTH} "
                f"({last.name} is the first field left out)"
            )
    return None
