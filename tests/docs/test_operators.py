"""The page on operators lists those that there are, and its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from amaranth_vta.sw.compiler.operators import conv2d

PAGE = (Path(__file__).parents[2] / "docs" / "operators.md").read_text(encoding="utf-8")


def test_the_page_lists_every_operator() -> None:
    folder = Path(conv2d.__file__).parent
    # What a file is named after is an operator if it has a name in programs.
    operators = {
        path.stem
        for path in folder.glob("*.py")
        if f' name: str = "{path.stem}"' in path.read_text(encoding="utf-8")
    }
    assert len(operators) > 12
    assert set(re.findall(r"^\| `(\w+)`", PAGE, re.MULTILINE)) == operators


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "operators.md", "exec"), {})
    out = capsys.readouterr().out
    assert "Grouping(merged=16, groups=2, inputs=1, outputs=1)" in out
    assert "w (2, 1, 1, 3, 3, 16, 16)" in out
