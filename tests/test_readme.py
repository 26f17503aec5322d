"""The README says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from amaranth_vta import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_python_in_the_readme_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert re.match(r"\[\d \d \d \d\]\n", out)
    assert "conv1" in out


def test_the_readme_lists_the_commands_that_there_are() -> None:
    assert set(re.findall(r"^    vta (\w+)", README, re.MULTILINE)) == set(cli.vta.commands)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert local
    assert [link for link in local if not (path.parent / link).exists()] == []


def test_the_index_lists_every_record_and_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = [
        path.relative_to(ROOT / "docs")
        for path in (ROOT / "docs").rglob("*.*")
        if path.suffix in (".md", ".ipynb")
    ]
    assert [page for page in pages if page.name != "index.md" and f"({page})" not in index] == []


def test_the_area_in_the_readme_is_that_of_the_report() -> None:
    report = (ROOT / "bitstreams" / "resources.md").read_text(encoding="utf-8")
    table = report[report.index("| machine") :].partition("\n\n")[0]
    assert table in README, "run `python benchmarks/performance.py --area`"
