"""Layers import only the layers below them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.import_graph import module_name

ROOT = Path(__file__).parents[1]
# A package whose files only its own `__init__.py` and each other import.
ISA = "amaranth_vta.hw.isa"
# Modules that software shares with hardware: data, without imports of Amaranth or the design.
SHARED = (
    "amaranth_vta.hw.config",
    "amaranth_vta.hw.index_widths",
    ISA,
    "amaranth_vta.hw.memory_timing",
    "amaranth_vta.hw.microarchitecture",
    "amaranth_vta.hw.registers",
    "amaranth_vta.hw.system.parameters",
    "amaranth_vta.hw.tiles",
    "amaranth_vta.hw.timing",
    "amaranth_vta.hw.boards.protocol",
)
# Imported by every layer: the base class of errors.
BASE = "amaranth_vta.errors"
# The only module outside hw that may import the design.
ELABORATES = "sim/machine/elaborate.py"
# The only folder, besides tests, whose modules may import Amaranth's private modules.
INTERNALS = "sim/amaranth_internals/"
FOLDERS = ("hw", "sw", "sim")
# rglob does not follow the links in amaranth_vta.
SOURCES = (*FOLDERS, "amaranth_vta", "tests", "examples", "benchmarks")


def violations(root: Path) -> Iterator[str]:
    """Imports under ``root`` that violate the layering, each with file and line."""
    for folder in FOLDERS:
        if (root / folder / "__init__.py").exists():
            yield f"{folder}/__init__.py: the lint rule would take relative imports for `{folder}`"
    for path in sorted(path for folder in SOURCES for path in (root / folder).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        for line, module in imports(path, name):
            if reason := refused(name, module):
                yield f"{name}:{line}: imports {module}: {reason}"


def refused(name: str, module: str) -> str | None:
    top = module.partition(".")[0]
    if top in FOLDERS:
        return f"the import name is amaranth_vta.{module}"
    folder = name.partition("/")[0]
    if folder != "tests":
        if within(module, "unittest"):
            return "only tests replace parts of other modules"
        if top == "amaranth" and "._" in module and not name.startswith(INTERNALS):
            return f"private modules of Amaranth are for {INTERNALS}"
    own = module_name(Path(name))
    if within(module, ISA) and module != ISA and not within(own, ISA):
        return f"files of {ISA} are imported through the package"
    if any(within(own, shared) for shared in SHARED):
        if top == "amaranth":
            return "what software shares with hardware is pure data"
        allowed = (*SHARED, BASE)
        if within(module, "amaranth_vta") and not any(within(module, name) for name in allowed):
            return "what software shares with hardware knows nothing else"
    if folder in ("examples", "benchmarks") and within(module, "onnxruntime"):
        return "sw.runtime.network.onnx_runtime turns its telemetry off before it is imported"
    if folder == "hw" and (within(module, "amaranth_vta.sw") or within(module, "amaranth_vta.sim")):
        return "hardware knows neither software nor simulators"
    if folder == "sw" and within(module, "amaranth_vta.sim"):
        return "software does not know simulators"
    if (
        folder in ("sw", "sim")
        and name != ELABORATES
        and within(module, "amaranth_vta.hw")
        and not any(within(module, shared) for shared in SHARED)
    ):
        return f"from hw only {', '.join(SHARED)}"
    return None


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def imports(path: Path, name: str) -> Iterator[tuple[int, str]]:
    """Line and full name of each module that a file imports anywhere."""
    package = ["amaranth_vta", *name.split("/")[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = package[: len(package) + 1 - node.level] if node.level else []
            base = [*origin, *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                # A name may be a module of the package or an object in it: both are checked, and a
                # package alone (`from amaranth_vta.hw import isa`) is not the imported module.
                module = ".".join([*base, alias.name])
                is_module = names_module(module) or alias.name.startswith("_")
                yield node.lineno, module if is_module else ".".join(base)


def names_module(module: str) -> bool:
    parts = module.split(".")
    if parts[0] != "amaranth_vta":
        return False
    place = ROOT.joinpath("amaranth_vta", *parts[1:])
    return place.is_dir() or place.with_suffix(".py").is_file()


def test_no_source_crosses_a_border() -> None:
    assert list(violations(ROOT)) == []


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("sw/x.py", "import hw.isa", "the import name is amaranth_vta.hw.isa"),
        ("tests/x.py", "from sim import devices", "the import name is amaranth_vta.sim"),
        ("sw/x.py", "from amaranth_vta.hw.top import Top", "from hw only"),
        ("sw/x.py", "from amaranth_vta.hw import gemm", "from hw only"),
        ("sw/compiler/x.py", "def f():\n    import amaranth_vta.hw.core", "from hw only"),
        ("sim/x.py", "from amaranth_vta.hw import isa, stream", "from hw only"),
        ("sw/runtime/x.py", "from amaranth_vta.sim.devices import open_device", "not know simul"),
        ("hw/x.py", "from amaranth_vta.sw.runtime import device", "hardware knows neither"),
        ("hw/platform/x.py", "import amaranth_vta.sim.programs.image", "hardware knows neither"),
        ("hw/isa/layouts.py", "from amaranth.lib import data", "pure data"),
        ("hw/isa/layouts.py", "from amaranth_vta.hw import stream", "knows nothing else"),
        ("hw/x.py", "from amaranth_vta.hw.isa.memories import Memory", "through the package"),
        ("hw/x.py", "from .isa import encoding", "through the package"),
        ("hw/x.py", "from amaranth.hdl import _nir", "private modules"),
        ("sim/x.py", "from amaranth.sim._pyrtl import _FragmentCompiler", "private modules"),
        ("sim/x.py", "from unittest.mock import patch", "only tests replace"),
        ("hw/config.py", "from . import stream", "knows nothing else"),
        ("examples/x.py", "from onnxruntime import InferenceSession", "telemetry"),
        ("benchmarks/x.py", "def f():\n    import onnxruntime.quantization", "telemetry"),
        ("hw/__init__.py", "", "the lint rule would take"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, name: str, text: str, reason: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(text)
    (found,) = violations(tmp_path)
    assert name in found
    assert reason in found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sim/machine/elaborate.py", "from amaranth_vta.hw.top import Top"),
        ("sim/x.py", "from amaranth_vta.hw import config, isa, registers"),
        ("sim/amaranth_internals/x.py", "from amaranth.hdl import _ast, _ir"),
        ("sim/x.py", "from amaranth_vta.sw.runtime.device import Device"),
        ("hw/x.py", "from amaranth.lib import wiring\nfrom .stream import Queue"),
        ("hw/config.py", "from . import isa"),
        ("hw/isa/__init__.py", "from .layouts import Field"),
        ("hw/config.py", "from amaranth_vta.errors import VtaError"),
        ("amaranth_vta/session.py", "from amaranth_vta.sim.devices import open_device"),
    ],
)
def test_what_is_allowed_is_not_found(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(text)
    assert list(violations(tmp_path)) == []
