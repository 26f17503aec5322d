"""Python on the pages of docs/ runs, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from amaranth_vta.sw.compiler.lower import PASS_NAMES

DOCS = Path(__file__).parents[2] / "docs"


def test_a_pass_of_ones_own_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "lowering.md").read_text(), re.DOTALL)
    exec(compile(code, "lowering.md", "exec"), {})
    assert capsys.readouterr().out == "2 transfers\n"


def test_the_table_of_passes_has_them_all_in_order() -> None:
    text = (DOCS / "lowering.md").read_text()
    assert re.findall(r"^\| `(\w+)`", text, re.MULTILINE) == list(PASS_NAMES)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)[)#]", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (DOCS / link).exists()] == []
