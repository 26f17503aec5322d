"""The page on operators lists all operators, and its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from amaranth_vta.sw.compiler.operators import dense

PAGE = (Path(__file__).parents[2] / "docs" / "operators.md").read_text(encoding="utf-8")


def test_the_page_lists_every_operator() -> None:
    folder = Path(dense.__file__).parent
    # The default name of an operator's function is the operator's name.
    operators = {
        name
        for path in folder.rglob("*.py")
        for name in re.findall(r' name: str = "(\w+)"', path.read_text(encoding="utf-8"))
    }
    assert len(operators) > 11
    assert set(re.findall(r"^\| `(\w+)`", PAGE, re.MULTILINE)) == operators


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "operators.md", "exec"), {})
    out = capsys.readouterr().out
    assert "Grouping(merged=16, groups=2, inputs=1, outputs=1)" in out
    assert "w (2, 1, 1, 3, 3, 16, 16)" in out
    assert "limit  knobs" in out
