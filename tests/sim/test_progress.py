"""A build shows its progress on a terminal."""

from __future__ import annotations

import io

import pytest

from amaranth_vta.sim.progress import building


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_steps_are_shown_with_what_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with building("the rtl device", None) as tell:
        assert tell is not None
        tell("compiling the simulator, 3 of 12")
    assert "building the rtl device: compiling the simulator, 3 of 12" in terminal.getvalue()


def test_without_a_step_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with building("the rtl device", None):
        pass
    assert terminal.getvalue() == ""


def test_logs_stay_clean_and_a_callers_own_display_is_used() -> None:
    with building("the rtl device", None) as tell:
        assert tell is None
    steps: list[str] = []
    with building("the rtl device", steps.append) as tell:
        assert tell is not None
        tell("one")
    assert steps == ["one"]
