"""The causes of lost cycles, as docs/performance.md has them."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_causes_add_up_to_the_cycles_of_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    names = runpy.run_path(str(BENCHMARKS / "lost_cycles.py"))
    *_, row = names["table"](["digits"], "ideal")
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[0] == "digits"
    cycles, *causes = (int(cell.replace(",", "")) for cell in cells[1:])
    assert len(causes) == len(names["HEADS"]) - 2
    assert min(causes) >= 0
    assert sum(causes) == cycles > 0
    # The MACs that GEMM does, and the loads of the last layer's weights, which limit it.
    macs, waits_for_load = causes[0], causes[5]
    assert 1_000 < macs < cycles
    assert waits_for_load > 0.2 * cycles
