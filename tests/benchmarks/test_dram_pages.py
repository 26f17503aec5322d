from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_page_stays_open_until_its_bank_needs_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    names = runpy.run_path(str(BENCHMARKS / "dram_pages.py"))
    # Of 8 bytes per beat: the last burst is in two pages.
    bursts = [(0, 256), (0x1000, 1), (8, 4), (0x800, 2), (0x1008, 1), (0x17F8, 2)]
    pages = list(names["pages_of"](bursts, 8))
    assert pages == [0, 2, 0, 1, 2, 2, 3]
    assert [names["opened"](pages, banks) for banks in (1, 2, 4)] == [6, 6, 4]
