"""Statements of the README are true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from amaranth_vta import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_python_in_the_readme_prints_what_it_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == shown


def test_the_numbers_of_the_first_screen_are_those_of_the_reports() -> None:
    measured = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    cycles, share = re.findall(r"([\d,]+) cycles for [\d,]+ MACs, ([\d.]+)%", measured)[0]
    wrong = re.findall(r"; (\d+) of 1,000 results differ", measured)[0]
    row = next(line for line in measured.splitlines() if line.startswith("| `pynq-extended` |"))
    lut, _, dsp, bram = (cell.strip() for cell in row.split("|")[2:6])
    (speed,) = re.findall(r"`pynq-extended` ([\d,]+) k", measured)
    ((milliseconds, ratio),) = re.findall(
        r"device, AVX-512.* \| ([\d.]+) \|.*\| ([\d.]+) \|", measured
    )
    first = README.partition("```python")[0]
    assert f"**{share} %** of 256 MACs" in first
    assert f"{cycles} cycles" in first
    assert f"**{wrong}** of 1,000 results" in first
    assert f"**{lut}** LUTs, {dsp} DSPs, {bram} BRAM36" in first
    assert f"**{speed},000** simulated cycles" in first
    assert f"ResNet-18 in {milliseconds} ms]" in first
    assert f"{ratio} times what ONNX Runtime takes" in first


def test_the_readme_lists_the_commands_that_there_are() -> None:
    assert set(re.findall(r"^    vta ([\w-]+)", README, re.MULTILINE)) == set(cli.vta.commands)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/decisions/index.md"])
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"(?:\]\(|src=\"|srcset=\")([^)#\"]+)", path.read_text(encoding="utf-8"))
    local = [link for link in links if not link.startswith(("https://", "../../"))]
    assert local
    assert [link for link in local if not (path.parent / link).exists()] == []


def test_the_index_lists_every_record_and_page() -> None:
    docs = ROOT / "docs"
    index = (docs / "index.md").read_text(encoding="utf-8")
    pages = {
        path.relative_to(docs).as_posix()
        for path in docs.rglob("*.*")
        if path.suffix in (".md", ".ipynb")
    }
    # The site's copy of the example's readme, and the API pages, which have an index of their own.
    apart = {page for page in pages if page.startswith("api/")} | {"index.md", "digits.md"}
    records = {page for page in pages if page.startswith("decisions/0")}
    listed = (docs / "decisions" / "index.md").read_text(encoding="utf-8")
    missing = [page for page in records if f"({page.removeprefix('decisions/')})" not in listed]
    assert missing == []
    assert [page for page in sorted(pages - apart - records) if f"({page})" not in index] == []
    assert "(api/index.md)" in index


def test_the_area_in_the_documentation_is_that_of_the_report() -> None:
    report = (ROOT / "bitstreams" / "resources.md").read_text(encoding="utf-8")
    table = report[report.index("| machine") :].partition("\n\n")[0]
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    rows = [line for line in table.splitlines() if not line.startswith("| target")]
    assert "\n".join(rows) in page, "run `python benchmarks/performance.py --only area`"


def test_every_figure_has_its_dark_variant_and_is_shown() -> None:
    """A floor plan has both colors in one file, selected by the reader's preferred scheme."""
    figures = ROOT / "docs" / "figures"
    sources = (
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "docs").rglob("*.ipynb"),
        ROOT / "README.md",
    )
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    for path in sorted(figures.glob("*.svg")):
        light = path.name.replace("-dark.svg", ".svg")
        assert light in text, f"no page shows {light}"
        assert path.with_name(light).exists(), light
        has_both = "prefers-color-scheme: dark" in path.read_text(encoding="utf-8")
        assert has_both or path.with_name(light.replace(".svg", "-dark.svg")).exists(), light
