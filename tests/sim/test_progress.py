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
        tell("compiling the simulator, 3 of 12")
    assert "building the rtl device: compiling the simulator, 3 of 12" in terminal.getvalue()


def test_without_a_step_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with building("the rtl device", None):
        pass
    assert terminal.getvalue() == ""


def test_steps_are_logged_where_there_is_no_terminal(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), building("the rtl device", None) as tell:
        tell("elaborating the design")
    assert caplog.messages == ["building the rtl device: elaborating the design"]


def test_a_callers_own_display_replaces_both() -> None:
    steps: list[str] = []
    with building("the rtl device", steps.append) as tell:
        tell("one")
    assert steps == ["one"]
