"""Generates a C header with registers, instructions and parameters of a machine: `header`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from enum import IntEnum

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.registers import IDENTITY, REGISTERS, VERSION

_HEAD = """\
/* Registers and instructions of an amaranth-vta machine; made by `vta header`.
 *
 * VTA_REG_*: byte offsets of registers, 64-bit ones two words with the low one first; of their
 * parts, and of the fields of instructions and micro-ops, *_SHIFT and *_WIDTH in bits. An
 * instruction is uint64_t[2]; a field never lies in both.
 */
#ifndef VTA_H
#define VTA_H

#include <stdint.h>
"""
_TAIL = """\
/* Puts value into a field of an instruction that was zero there. */
static inline void vta_put(uint64_t instruction[2], unsigned shift, unsigned width, int64_t value)
{
    const uint64_t mask = (UINT64_C(1) << width) - 1;
    instruction[shift / 64] |= ((uint64_t)value & mask) << shift % 64;
}

#endif
"""


def header(config: Config) -> str:
    """The text of the header for ``config``."""
    groups = (
        ("The machine", _parameters(config)),
        ("Registers", _registers()),
        ("Numbers", _numbers(config)),
        ("Instructions", _layouts(config)),
    )
    text = _HEAD
    for title, definitions in groups:
        text += f"\n/* {title} */\n"
        text += "".join(f"#define VTA_{name.upper()} {value}\n" for name, value in definitions)
    return f"{text}\n{_TAIL}"


def _parameters(config: Config) -> Iterator[tuple[str, object]]:
    yield "identity", f"UINT32_C({IDENTITY:#x})"
    yield "version", VERSION
    for item in fields(config):
        yield item.name, getattr(config, item.name)
    for memory in isa.transferred_memories(config.extensions):
        yield f"{memory.name}_element_bytes", config.memory(memory).element_bytes
        yield f"{memory.name}_depth", config.memory(memory).depth


def _registers() -> Iterator[tuple[str, object]]:
    for register in REGISTERS.values():
        yield f"reg_{register.name}", f"{register.offset:#05x}"
        for part in register.bits:
            yield f"{register.name}_{part.name}_shift", part.offset
            yield f"{register.name}_{part.name}_width", part.width


def _numbers(config: Config) -> Iterator[tuple[str, object]]:
    for opcode in isa.Opcode:
        yield f"opcode_{opcode.name}", opcode.value
    for memory in isa.transferred_memories(config.extensions):
        yield f"memory_{memory.name}", int(isa.memory_id(memory))
    kinds: tuple[tuple[str, type[IntEnum]], ...] = (
        ("alu", isa.AluOp),
        ("module", isa.Module),
        ("cause", isa.Cause),
    )
    for name, kind in kinds:
        for item in kind:
            yield f"{name}_{item.name}", item.value
    if config.pad_value:
        for padding in isa.Padding:
            yield f"memory_padding_of_{padding.name}", padding.value
    yield "instruction_bytes", isa.INSTRUCTION_BYTES
    yield "queue_depth", isa.QUEUE_DEPTH
    yield "token_limit", isa.TOKEN_LIMIT
    yield "base_alignment", isa.BASE_ALIGNMENT


def _layouts(config: Config) -> Iterator[tuple[str, object]]:
    instructions = isa.instruction_set(config)
    layouts = {opcode.name: layout for opcode, layout in instructions.layouts.items()}
    for name, layout in {**layouts, "UOP": instructions.uop_layout}.items():
        for field in layout.values():
            yield f"{name}_{field.name}_shift", field.offset
            yield f"{name}_{field.name}_width", field.width
