"""A change affects the tests that import it, nearest first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.import_graph import ImportGraph

FILES = {
    "hw/isa/__init__.py": "from .layouts import X",
    "hw/isa/layouts.py": "",
    "hw/core.py": "from . import isa",
    "sim/model/machine.py": "from amaranth_vta.hw.isa import X",
    "sim/model/native/cpp/gemm.h": "",
    "sim/model/native/model.py": "def f():\n    import amaranth_vta.sim.model.machine",
    "tests/hw/conftest.py": "",
    "tests/hw/test_core.py": "from amaranth_vta.hw import core",
    "tests/sim/test_machine.py": "import amaranth_vta.sim.model.machine",
    "tests/sim/test_native.py": "import amaranth_vta.sim.model.native.model",
    "tests/docs/test_pages.py": "",
}


@pytest.mark.parametrize(
    ("changed", "affected"),
    [
        ("hw/core.py", ["tests/hw/test_core.py"]),
        (
            "hw/isa/layouts.py",
            ["tests/hw/test_core.py", "tests/sim/test_machine.py", "tests/sim/test_native.py"],
        ),
        ("sim/model/machine.py", ["tests/sim/test_machine.py", "tests/sim/test_native.py"]),
        ("sim/model/native/cpp/gemm.h", ["tests/sim/test_native.py"]),
        ("tests/sim/test_native.py", ["tests/sim/test_native.py"]),
        ("tests/hw/conftest.py", ["tests/hw/test_core.py"]),
        ("docs/isa.md", ["tests/docs/test_pages.py"]),
        ("LICENSE", []),
    ],
)
def test_affected_tests(tmp_path: Path, changed: str, affected: list[str]) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert ImportGraph(tmp_path).affected_tests([changed]) == affected
