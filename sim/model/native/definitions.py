"""Definitions shared by Python and C++, as ctypes structures and a C++ header: parameters of a
machine, the report of a run, and the numbers of the instruction set.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.registers import COUNTERS

COUNTED = tuple(counter.name for counter in COUNTERS if not counter.time)
OPCODES = 8
# All fields of all instructions, including those of extensions.
FIELDS = tuple(
    dict.fromkeys(
        name
        for layout in isa.instruction_set(PRESETS["pynq-extended"]).layouts.values()
        for name in layout
    )
)
_UOP_FIELDS = ("dst", "src", "wgt")
_SIZES = (
    *("batch", "block_in", "block_out"),
    *("inp_width", "wgt_width", "acc_width", "out_width", "taps"),
)
_MEMORIES = ("uop", "inp", "wgt", "acc")
_EXTENSIONS = ("requantize", "pad_value", "round_twice", "wgt_4bit")
_CONSTANTS = {
    name: getattr(isa, name)
    for name in (
        *("INSTRUCTION_BYTES", "QUEUE_DEPTH", "TOKEN_LIMIT", "REQUANTIZE_PARAMETERS"),
        *("SCALE_WIDTH", "SCALE_FRACTION", "MULTIPLIED_WIDTH", "WIDE_BIT", "TABLE_BYTES"),
        *("ROUND_TWICE_BIT", "SECOND_SHIFT_BIT", "SECOND_SHIFT_WIDTH"),
    )
}


class Rule(ctypes.Structure):
    """An `isa.Rule` for one field: in instructions of ``opcode``, ``field`` has one of ``values``.

    The rule applies only if ``when_field`` has one of ``when_values``. Sets of values are bit
    masks.
    """

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("opcode", "field", "when_field")),
        *((name, ctypes.c_uint64) for name in ("values", "when_values")),
    ]


def _rules(extensions: frozenset[str]) -> list[Rule]:
    rules = []
    for opcode in isa.Opcode:
        for rule in isa.rules(opcode, extensions):
            # A rule without a condition gets one that always holds: its own opcode.
            when_field, when_values = rule.when or ("opcode", (opcode,))
            when = FIELDS.index(when_field), _mask(rule.values), _mask(when_values)
            rules += [Rule(opcode, FIELDS.index(field), *when) for field in rule.fields]
    return rules


def _mask(values: Iterable[int]) -> int:
    return sum(1 << value for value in values)


class Parameters(ctypes.Structure):
    """Sizes and depths of a machine, field positions of its instructions, and their `Rule`s.

    ``offset`` and ``width`` are indexed by opcode and field. ``covered``, indexed by opcode, is the
    mask of bits within fields, for both words; ``known`` is the mask of defined opcodes. Rules of
    an opcode go from its ``first_rule`` up to that of the next opcode.
    """

    _fields_ = [
        *((name, ctypes.c_uint32) for name in _SIZES),
        *((f"{name}_depth", ctypes.c_uint32) for name in _MEMORIES),
        *((f"uop_{name}_offset", ctypes.c_uint32) for name in _UOP_FIELDS),
        *((f"uop_{name}_width", ctypes.c_uint32) for name in _UOP_FIELDS),
        *((name, ctypes.c_uint32) for name in _EXTENSIONS),
        ("table_elements", ctypes.c_uint32),
        ("known", ctypes.c_uint32),
        ("offset", ctypes.c_uint32 * len(FIELDS) * OPCODES),
        ("width", ctypes.c_uint32 * len(FIELDS) * OPCODES),
        ("covered", ctypes.c_uint64 * 2 * OPCODES),
        ("first_rule", ctypes.c_uint32 * (OPCODES + 1)),
        ("rules", Rule * len(_rules(PRESETS["pynq-extended"].extensions))),
    ]


class Report(ctypes.Structure):
    """Outcome of a run: counters, tokens left, and the fault; ``cause`` is 0 without a fault."""

    _fields_ = [
        ("counters", ctypes.c_uint64 * len(COUNTED)),
        ("instruction", ctypes.c_uint64),
        ("tokens", ctypes.c_uint32 * len(isa.TOKEN_QUEUES)),
        ("module", ctypes.c_uint32),
        ("cause", ctypes.c_uint32),
    ]


def parameters_of(config: Config) -> Parameters:
    """The `Parameters` of the machine of ``config``."""
    result = Parameters()
    for name in (*_SIZES, *_EXTENSIONS, "table_elements"):
        setattr(result, name, getattr(config, name))
    for name in _MEMORIES:
        setattr(result, f"{name}_depth", getattr(config, name).depth)
    rules = _rules(config.extensions)
    result.rules[: len(rules)] = rules
    for opcode in range(OPCODES + 1):
        result.first_rule[opcode] = sum(rule.opcode < opcode for rule in rules)
    instruction_set = isa.instruction_set(config)
    for name in _UOP_FIELDS:
        field = instruction_set.uop_layout[name]
        setattr(result, f"uop_{name}_offset", field.offset)
        setattr(result, f"uop_{name}_width", field.width)
    for opcode, layout in instruction_set.layouts.items():
        result.known |= 1 << opcode
        covered = 0
        for field in layout.values():
            result.offset[opcode][FIELDS.index(field.name)] = field.offset
            result.width[opcode][FIELDS.index(field.name)] = field.width
            covered |= (1 << field.width) - 1 << field.offset
        for word in range(2):
            result.covered[opcode][word] = covered >> word * isa.WORD_WIDTH & (1 << 64) - 1
    return result


def header() -> str:
    """definitions.h for the C++ sources."""
    return "\n".join(
        (
            "// Written by amaranth_vta.sim.model.native.definitions.",
            "#pragma once",
            "#include <cstdint>",
            "namespace vta {",
            *(f"constexpr unsigned {name} = {value};" for name, value in _CONSTANTS.items()),
            f"constexpr unsigned OPCODES = {OPCODES};",
            f"constexpr unsigned FIELDS = {len(FIELDS)};",
            f"constexpr unsigned COUNTERS = {len(COUNTED)};",
            f"constexpr unsigned MEMORIES = {max(isa.Memory) + 1};",
            _enum("Opcode", isa.Opcode),
            _enum("Memory", isa.Memory),
            _enum("Padding", isa.Padding),
            _enum("AluOp", isa.AluOp),
            _enum("Module", isa.Module),
            _enum("Cause", isa.Cause, "NONE"),
            f"enum class Field : uint32_t {{ {', '.join(FIELDS)} }};",
            f"enum class Counter : uint32_t {{ {', '.join(COUNTED)} }};",
            _struct(Rule),
            _struct(Parameters),
            _struct(Report),
            "}  // namespace vta",
            "",
        )
    )


def _enum(name: str, numbers: Iterable[IntEnum], zero: str | None = None) -> str:
    items = [f"{item.name} = {item.value}" for item in numbers]
    return f"enum class {name} : uint32_t {{ {', '.join([f'{zero} = 0'] * bool(zero) + items)} }};"


def _struct(kind: type[ctypes.Structure]) -> str:
    members = []
    for name, member, *_ in kind._fields_:
        scalar: Any = member
        lengths = ""
        while issubclass(scalar, ctypes.Array):
            lengths += f"[{scalar._length_}]"
            scalar = scalar._type_
        if issubclass(scalar, ctypes.Structure):
            members.append(f"{scalar.__name__} {name}{lengths};")
        else:
            members.append(f"uint{8 * ctypes.sizeof(scalar)}_t {name}{lengths};")
    return f"struct {kind.__name__} {{ {' '.join(members)} }};"
