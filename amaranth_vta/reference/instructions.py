"""Generates the page on the instruction set: `page`."""

from __future__ import annotations

from collections.abc import Iterable

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import DEFAULT, PRESETS, Config

from . import semantics
from .markdown import bits, figure, table

# The base profile, a machine with all extensions, and one with much narrower fields.
_SHOWN = ("pynq", "pynq-extended", "tiny")
_HEAD = """\
# Instruction set

Generated from `hw/isa/`, with words from `amaranth_vta/reference/semantics.py`, by `make docs`;
not written by hand.

An instruction is 128 bits, two little-endian words of 64; a micro-op is 32. Fields follow one
another from bit 0, and one that would straddle bit 64 starts the second word. Widths depend on the
configuration, which `vta config` prints. Bits that no field covers must be zero, except those of
FINISH.
"""


def page() -> str:
    """Markdown: meaning and layout of all instructions, memories, operations and extensions."""
    lines = [*_HEAD.splitlines(), "", "## Order", "", semantics.ORDER, "", semantics.ADDRESSES]
    for opcode in isa.Opcode:
        lines += ["", f"## {opcode.name}: opcode {opcode.value}", ""]
        wanted = [name for name in _SHOWN if opcode in _set(name).layouts]
        if not _is_in_base(opcode):
            lines += [f"Only with {_extension_of(opcode)}.", ""]
        lines += [semantics.INSTRUCTIONS[opcode], ""]
        alt = f"Fields of {opcode.name} by bit, on {DEFAULT}"
        lines += [figure(f"isa-{opcode.name.lower()}", alt), ""]
        lines += _layouts({name: _set(name).layouts[opcode] for name in wanted})
    lines += ["", "## Micro-op", ""]
    lines += [figure("isa-uop", f"Fields of a micro-op by bit, on {DEFAULT}"), ""]
    lines += _layouts({name: _set(name).uop_layout for name in _SHOWN})
    lines += ["", "## Memories", ""]
    memories: Iterable[isa.Memory | isa.Padding] = (*isa.Memory, *isa.Padding)
    lines += table(
        ("number", "memory", "what", *(f"bytes of an element, {name}" for name in _SHOWN)),
        (
            (
                int(isa.memory_id(item)),
                item.name if isinstance(item, isa.Memory) else "",
                semantics.MEMORIES[item],
                *(_element_bytes(PRESETS[name], item) for name in _SHOWN),
            )
            for item in memories
        ),
    )
    lines += ["", "## ALU operations", ""]
    lines += table(
        ("number", "operation", "acc[dst] becomes"),
        ((item.value, item.name, semantics.ALU_OPS[item]) for item in isa.AluOp),
    )
    lines += ["", "## Modules", ""]
    lines += table(
        ("number", "module", "executes"),
        ((item.value, item.name.lower(), semantics.MODULES[item]) for item in isa.Module),
    )
    lines += ["", "## Faults", ""]
    lines += [semantics.CONTAINMENT, ""]
    lines += table(
        ("number", "cause", "what"),
        ((item.value, f"`{item.name.lower()}`", semantics.CAUSES[item]) for item in isa.Cause),
    )
    lines += ["", "## Extensions", ""]
    lines += [
        "Each is a flag of the configuration; without the flag, all that the extension adds "
        "is illegal, or ignored."
    ]
    for name, text in semantics.EXTENSIONS.items():
        lines += ["", f"### {name.upper()}", "", text]
    return "\n".join(lines) + "\n"


def _is_in_base(opcode: isa.Opcode) -> bool:
    """Whether a machine without extensions has the instruction."""
    return opcode in _set("pynq").layouts


def _extension_of(opcode: isa.Opcode) -> str:
    config = PRESETS["pynq"]
    widths = {name: getattr(config, name).index_width for name in ("uop", "inp", "wgt", "acc")}
    for name in semantics.EXTENSIONS:
        if opcode in isa.InstructionSet(widths, frozenset({name})).layouts:
            return name.upper()
    raise LookupError(f"no extension has {opcode.name}")


def _set(preset: str) -> isa.InstructionSet:
    return isa.instruction_set(PRESETS[preset])


def _layouts(layouts: dict[str, isa.Layout]) -> list[str]:
    """A table with one row per field, and one column of bit positions per configuration."""
    fields = {name: None for layout in layouts.values() for name in layout}
    return table(
        ("field", *(f"bits, {name}" for name in layouts), "what"),
        (
            (
                f"`{field}`",
                *(
                    bits(layout[field].offset, layout[field].width) if field in layout else ""
                    for layout in layouts.values()
                ),
                semantics.FIELDS[field],
            )
            for field in fields
        ),
    )


def _element_bytes(config: Config, memory: isa.Memory | isa.Padding) -> object:
    known = memory in isa.transferred_memories(config.extensions)
    return config.memory(isa.Memory(memory)).element_bytes if known else ""
