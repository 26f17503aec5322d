"""The bench in docs/cocotb.md behaves as documented, in both simulators."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "cocotb.md"


def run(text: str, simulator: str, folder: Path) -> None:
    bench = folder / "my_bench.py"
    bench.write_text(text, encoding="utf-8")
    runpy.run_path(str(bench))["test_the_lane"](folder / "build", simulator=simulator)


@pytest.mark.parametrize("simulator", ["verilator", "icarus"])
def test_the_bench_of_the_page_runs(simulator: str, tmp_path: Path) -> None:
    if simulator == "icarus" and shutil.which("iverilog") is None:
        pytest.skip("Icarus is not installed")
    (text,) = re.findall(r"```python\n(import cocotb\n.*?)```", PAGE.read_text(), re.DOTALL)
    run(text, simulator, tmp_path)
    if simulator == "icarus":
        with pytest.raises(AssertionError):
            run(text.replace("AluOp.ADD", "AluOp.MUL"), simulator, tmp_path)
