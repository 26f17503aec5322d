"""The compiler below the operators does not depend on them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

COMPILER = Path(__file__).parents[3] / "sw" / "compiler"
FILES = sorted([*COMPILER.glob("*.py"), *COMPILER.glob("passes/*.py")])
SCRIPT = """
import sys
from importlib.abc import MetaPathFinder

class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("amaranth_vta.sw.compiler.operators"):
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
sys.path.insert(0, sys.argv[1])
import test_programs as programs
env = programs.Environment(programs.PRESETS["tiny"])
shape = programs.Convolution(1, 2, 2, (5, 7), (3, 3), 2, (1, 1, 1, 1), (1, 2, 2, 1), order=3)
programs.check(programs.convolution(env, shape))
"""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_below_imports_operators(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        assert not any("operators" in name for name in names), names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_below_knows_the_name_of_an_operator(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search("conv2d|pool2d|dense|depthwise|pointwise|residual|upsample", text)


def test_a_convolution_in_a_users_file_compiles_without_the_operators() -> None:
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
