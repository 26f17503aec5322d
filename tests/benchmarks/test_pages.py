"""Parts of documentation pages that benchmarks write and check."""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path
from typing import Any

import pytest

PAGES = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "pages.py"))
MARKER, LINES = "<!-- made by a test -->\n", ["| a |", "|---|", "| 1 |"]
BEFORE, AFTER = "# Title\n\n", "\n<!-- another -->\n| 2 |\n<!-- end -->\n"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(f"{BEFORE}{MARKER}old\n<!-- end -->\n{AFTER}")
    return path


def put(page: Path, *options: str, writes: bool = False, lines: list[str] = LINES) -> Any:
    parser = argparse.ArgumentParser()
    PAGES["add_options"](parser, str(page), writes)
    return PAGES["put"](parser.parse_args(options), MARKER, lines, str(page))


def test_only_the_text_between_the_markers_is_replaced(page: Path) -> None:
    assert not put(page, "--write")
    text = "\n".join(LINES)
    assert page.read_text() == f"{BEFORE}{MARKER}{text}\n<!-- end -->\n{AFTER}"
    assert not put(page, "--check")


@pytest.mark.parametrize("lines", [[], LINES[:2], [*LINES, "| 3 |"], [*LINES[:2], "| 4 |"]])
def test_a_difference_makes_the_page_stale(
    page: Path, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    put(page, "--write")
    before = page.read_text()
    assert put(page, "--check", lines=lines)
    assert page.read_text() == before
    assert "+++ measured" in capsys.readouterr().out


def test_without_an_option_only_benchmarks_that_write_by_default_write(page: Path) -> None:
    before = page.read_text()
    assert not put(page)
    assert page.read_text() == before
    assert not put(page, writes=True)
    assert page.read_text() != before
    assert put(page, "--check", writes=True, lines=[])


def test_a_page_is_written_or_checked_but_not_both(page: Path) -> None:
    with pytest.raises(SystemExit):
        put(page, "--write", "--check")
