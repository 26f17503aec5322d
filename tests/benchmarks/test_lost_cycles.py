"""The causes of lost cycles, as listed in docs/performance.md."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return runpy.run_path(str(BENCHMARKS / "lost_cycles.py"))


def counts(row: str) -> tuple[str, list[int]]:
    name, *cells = (cell.strip() for cell in row.strip("|").split("|"))
    return name, [int(cell.replace(",", "")) for cell in cells]


def test_causes_add_up_to_the_cycles_of_a_network(names: dict[str, Any]) -> None:
    *_, row = names["table"](["digits"], "ideal")
    name, (cycles, *causes) = counts(row)
    assert name == "digits"
    assert len(causes) == len(names["HEADS"]) - 2
    assert min(causes) >= 0
    assert sum(causes) == cycles > 0
    # MACs, and waits for loads: the last layer is limited by loading its weights.
    macs, waits_for_load = causes[0], causes[5]
    assert 1_000 < macs < cycles
    assert waits_for_load > 0.2 * cycles


def test_layers_add_up_to_their_network(names: dict[str, Any]) -> None:
    *_, whole = names["table"](["digits"], "ideal")
    _, (cycles, macs, zeros, stalls, *idle) = counts(whole)
    rows = [counts(row)[1] for row in names["layer_table"]("digits", "ideal")[2:]]
    assert len(rows) == 4
    assert [sum(column) for column in zip(*rows, strict=True)] == [
        cycles,
        macs + zeros + stalls,
        *idle,
    ]
    assert all(row[0] == sum(row[1:]) > 0 for row in rows)
    # The last layer waits for its weights; earlier layers leave no room to prefetch them.
    assert rows[-1][4] > 0.4 * rows[-1][0]
