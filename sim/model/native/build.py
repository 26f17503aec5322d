"""Compiles the C++ of the functional model to one library for all configurations.

The code that executes instructions is compiled once per vector extension of the host that
multiplies bytes faster, and selected when the library is loaded. So one library serves all
computers that share a cache folder.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from amaranth_vta.sim.cache import ToolchainError, build_folder, hash_of, kept
from amaranth_vta.sim.toolchain import Command, compiler, run_tool, target_of

from .definitions import header

Progress = Callable[[str], None]

_FOLDER = Path(__file__).with_name("cpp")
_COMMON = ("machine", "instruction", "library")
_ENGINE = "engine"
_FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-psabi"),
    "-fwrapv",  # sums wrap around like the machine's
    "-fno-strict-aliasing",  # inputs are written as scalars and read in groups
    "-ffp-contract=off",
)
_X86 = platform.machine().lower() in ("x86_64", "amd64")
# Compiler options per engine, keyed by the engine's namespace.
_ENGINES: dict[str, tuple[str, ...]] = {"portable": ()}
if _X86:
    _ENGINES["avx2"] = ("-mavx2",)
    _ENGINES["avx512"] = (
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
        "-mprefer-vector-width=512",
    )


def native_library(progress: Progress | None = None) -> Path:
    """Path of the shared library; raises `ToolchainError` if it cannot be built here.

    ``progress`` is called when the library is built.
    """
    if sys.byteorder != "little":
        raise ToolchainError("the compiled functional model needs a little-endian processor")
    definitions = header()
    sources = sorted(_FOLDER.iterdir())
    key = hash_of(
        definitions,
        *(f"{path.name} {path.read_text(encoding='utf-8')}" for path in sources),
        *(f"{name} {flags}" for name, flags in _ENGINES.items()),
        *_FLAGS,
        *compiler(),
        target_of(compiler()),
    )

    def make(target: Path) -> None:
        if progress is not None:
            progress("compiling the functional model")
        _build(definitions, target)

    return kept("model", f"{key}.so", make)


def _build(definitions: str, target: Path) -> None:
    with build_folder(target) as folder:
        (folder / "definitions.h").write_text(definitions, encoding="utf-8")
        defines = ("-DX86",) if _X86 else ()
        jobs = [
            (_ENGINE, engine, (f"-DLANES={engine}", *flags)) for engine, flags in _ENGINES.items()
        ]
        jobs += [(source, source, defines) for source in _COMMON]

        def compile_one(job: tuple[str, str, tuple[str, ...]]) -> Path:
            source, name, options = job
            compiled = folder / f"{name}.o"
            places: Command = ("-I", folder, "-I", _FOLDER, "-c", _FOLDER / f"{source}.cpp")
            run_tool(
                (*compiler(), *_FLAGS, *options, *places, "-o", compiled),
                "the functional model cannot be compiled",
            )
            return compiled

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, jobs))
        link: Command = (*compiler(), "-shared", "-Wl,-Bsymbolic", "-o", target, *objects)
        run_tool(link, "the functional model cannot be linked")
