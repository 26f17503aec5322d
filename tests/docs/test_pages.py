"""Python code on the pages of docs/ runs, and their links have targets."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest

import amaranth_vta as vta
from amaranth_vta import te
from amaranth_vta.sim.devices import DEVICES
from amaranth_vta.sw.compiler.passes.pipeline import PASS_NAMES
from amaranth_vta.sw.compiler.te.schedule import SCOPES, Stage
from amaranth_vta.sw.runtime.runtime import Runtime
from tests.support.golden import Golden

DOCS = Path(__file__).parents[2] / "docs"


def test_the_added_pass_on_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "lowering.md").read_text(), re.DOTALL)
    exec(compile(code, "lowering.md", "exec"), {})
    assert capsys.readouterr().out == "2 transfers\n"


def test_the_table_of_passes_has_them_all_in_order() -> None:
    text = (DOCS / "lowering.md").read_text()
    assert re.findall(r"^\| `(\w+)`", text, re.MULTILINE) == list(PASS_NAMES)


def changed(before: str, after: str) -> str:
    """The lines of ``after``, with ``...`` for runs of unchanged lines, except the last line before
    a change.
    """
    old, new = before.splitlines(), after.splitlines()
    lines: list[str] = []
    for kind, _, _, begin, end in SequenceMatcher(None, old, new, False).get_opcodes():
        if kind == "equal" and end - begin > 2:
            indent = len(new[begin]) - len(new[begin].lstrip())
            lines.append(" " * indent + "...")
            begin = end - (end < len(new))
        lines += new[begin:end]
    return "\n".join(lines)


def test_the_walk_through_the_passes_is_what_the_compiler_prints(
    capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """``--rewrite-golden`` rewrites the page."""
    page = DOCS / "pass-by-pass.md"
    text = page.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "pass-by-pass.md", "exec"), names)
    steps = dict(re.findall(r"^# (\w+)\n(.*?)(?=\n\n#|\Z)", capsys.readouterr().out, re.M | re.S))
    before, shown = "", {}
    for name in PASS_NAMES:
        shown[name] = changed(before, steps[name])
        before = steps[name]
    shown["instructions"] = steps["instructions"].rstrip()

    def filled(match: re.Match[str]) -> str:
        return f"```{match[1]} {match[2]}\n{shown[match[2]]}\n```"

    current = re.sub(r"```(\w+) (\w+)\n.*?```", filled, text, flags=re.DOTALL)
    golden.check_text(page, current)
    left = {name for name in PASS_NAMES if f"```text {name}" not in text}
    assert all(shown[name] == "..." for name in left)


def test_the_names_that_are_said_to_exist_do() -> None:
    text = (DOCS / "names.md").read_text(encoding="utf-8")
    plain, table = text.split("The differences:")
    here = plain + "".join(line.split("|")[2] for line in table.splitlines() if "|" in line)
    homes = {"te": te, "vta": vta, "env": vta.get_env()}
    for home, name in re.findall(r"\b(te|vta|env)\.(\w+)", here):
        assert hasattr(homes[home], name), f"{home}.{name}"
    for name in re.findall(r"`([a-z]\w+)`", here):
        known = any(hasattr(home, name) for home in (te, te.Schedule, Stage, Runtime))
        assert known or name in (*SCOPES, *DEVICES), name


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)[)#]", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (DOCS / link).exists()] == []
