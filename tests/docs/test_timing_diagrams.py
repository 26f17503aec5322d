"""Waveforms are drawn as described in docstrings."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "docs" / "extensions" / "timing_diagrams.py"
SPEC = importlib.util.spec_from_file_location("timing_diagrams", FILE)
assert SPEC is not None
assert SPEC.loader is not None
timing_diagrams = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(timing_diagrams)


def texts(lines: list[str]) -> list[tuple[int, str]]:
    """The horizontal position and the contents of each text in a drawing."""
    found = []
    for line in lines:
        if line.startswith("<text"):
            place = line.split('x="')[1].split('"')[0]
            found.append((int(float(place)), line.split(">")[1].split("<")[0]))
    return found


def test_values_stand_in_the_columns_of_their_cycles() -> None:
    drawn = {
        text: at for at, text in texts(timing_diagrams.svg(["give    1", "count   0   1   2"]))
    }
    assert drawn["2"] - drawn["0"] == 2 * 56


def test_only_the_block_of_the_timing_is_replaced() -> None:
    lines = ["Some text::", "", "    kept", "", "Timing: as drawn::", "", "    a  1", "", "End."]
    timing_diagrams.draw_timing(None, "class", "x", None, None, lines)
    assert lines[:3] == ["Some text::", "", "    kept"]
    assert lines[4:7] == ["Timing: as drawn:", "", ".. raw:: html"]
    assert lines[-1] == "End."
    assert any("<svg" in line for line in lines)


def test_a_timing_without_a_block_stays_text() -> None:
    lines = ["Timing: in the next cycle.", "", "Ports"]
    timing_diagrams.draw_timing(None, "class", "x", None, None, lines)
    assert lines == ["Timing: in the next cycle.", "", "Ports"]


def test_a_line_without_a_signal_is_refused() -> None:
    with pytest.raises(ValueError, match="names no signal"):
        timing_diagrams.svg(["a  1", "   "])
