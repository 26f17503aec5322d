"""Takes the C++ that CXXRTL writes apart: declarations, functions and pins.

Relies on the form of the text that ``write_cxxrtl -noflatten -g0`` of Yosys 0.50 writes: each
module has a structure with its state, a function ``void p_NAME::reset()`` that sets registers to
their initial values, and a function ``bool p_NAME::eval(performer *performer)`` that evaluates the
module once.

Why: registers and memories must hold arbitrary bits before the reset, while CXXRTL initializes
them; and the functions are compiled in parallel, while CXXRTL writes a single file.

Unnecessary with: amaranth-lang/amaranth#324 (open), if Amaranth's own CXXRTL simulator permits
arbitrary initial contents. No issue of Yosys is known that asks for them, or for output in several
files.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_HEAD = re.compile(r"\A.*?(?=^namespace )", re.DOTALL | re.MULTILINE)
_TAIL = re.compile(r'^extern "C".*\Z', re.DOTALL | re.MULTILINE)
_RESET = re.compile(r"^void (\w+)::reset\(\) \{\n(.*?)^\}\n", re.DOTALL | re.MULTILINE)
_REGISTER = re.compile(r"^\t(\w+) = wire<", re.MULTILINE)
_INNER = re.compile(r"^\t(\w+)\.reset\(\);", re.MULTILINE)
_MEMORY = re.compile(r"^\tmemory<\d+> (\w+)", re.MULTILINE)
_EVAL = re.compile(
    r"^bool \w+::eval\(performer \*performer\) \{\n.*?^\}\n", re.DOTALL | re.MULTILINE
)
# An output that is a register is a wire, with a current and a next value.
_PIN = re.compile(r"^\t/\*(input|output)\*/ (value|wire)<(\d+)> (p_(\w+))[ ;{]", re.MULTILINE)
_USING = '#include "power_up.hpp"\nusing namespace cxxrtl_yosys;\n\n'


class Pin(NamedTuple):
    """A pin of the top module: its name in Verilog, its value in C++, and its width in bits."""

    name: str
    value: str
    width: int
    is_input: bool


def split(design: str) -> tuple[str, list[str]]:
    """Split ``design`` into a header, in which resets call ``power_up`` for all state, and the
    functions that evaluate modules.
    """

    def drawn(reset: re.Match[str]) -> str:
        structure = _structure(design, reset[1])
        state = (*_REGISTER.findall(reset[2]), *_MEMORY.findall(structure))
        lines = [f"\tpower_up({name});\n" for name in state]
        lines += [f"\t{cell}.reset();\n" for cell in _INNER.findall(reset[2])]
        return f"inline void {reset[1]}::reset() {{\n{''.join(lines)}}}\n"

    declarations = _RESET.sub(drawn, _EVAL.sub("", design))
    text = _HEAD.sub(_USING, _TAIL.sub("", declarations))
    return f"#pragma once\n{text}", _EVAL.findall(design)


def pins_of(design: str) -> list[Pin]:
    """Pins of the machine, whose module is ``vta``."""
    return [
        Pin(
            name.replace("__", "_"),
            f"{member}.curr" if kind == "wire" else member,
            int(bits),
            direction == "input",
        )
        for direction, kind, bits, member, name in _PIN.findall(_structure(design, "p_vta"))
    ]


def _structure(design: str, name: str) -> str:
    start = design.index(f"\nstruct {name} :")
    return design[start : design.index("\n};", start)]
