"""Disturbed runs are safe, and unsafe ones are detected. benchmarks/safety.py runs 10,000."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support import disturbed_runs
from tests.support.disturbed_runs import CONFIGS, KINDS, attempt
from tests.support.register_bench import RegisterBench

ALL_KINDS = range(len(CONFIGS) * len(KINDS))


def is_found(what: str) -> bool:
    """Whether one of the runs is wrong, and its message contains ``what``."""
    return any(what in found for number in ALL_KINDS for found in attempt(2, number).wrong)


def test_runs_end_write_only_what_they_may_and_leave_nothing_behind() -> None:
    outcomes = [attempt(2, number) for number in range(2 * len(ALL_KINDS))]
    assert [outcome for outcome in outcomes if outcome.wrong] == []
    assert {outcome.kind for outcome in outcomes} == set(KINDS)
    ends = {outcome.end for outcome in outcomes}
    assert {"stopped", "reset line", "timeout", "bus_error", "done"} <= ends


def test_bytes_written_outside_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        disturbed_runs, "_written_by", lambda bench, _: np.zeros(bench.memory.size, bool)
    )
    assert is_found("are written outside")


@pytest.mark.parametrize(
    ("name", "change", "seen"),
    [
        ("TIMEOUT", lambda value: 2 * value, "the watchdog of"),
        ("CONTROL", lambda value: value & 1, "a stop in cycle"),
        ("OUT_BASE", lambda value: value + 64, "are written outside"),
    ],
)
def test_a_machine_whose_register_does_something_else_is_seen(
    monkeypatch: pytest.MonkeyPatch, name: str, change: Any, seen: str
) -> None:
    write = RegisterBench._write
    monkeypatch.setattr(
        RegisterBench,
        "_write",
        lambda bench, register, value: write(
            bench, register, change(value) if register == name else value
        ),
    )
    assert is_found(seen)


def test_an_error_that_is_not_reported_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RegisterBench, "fault", None)
    assert is_found("no fault is reported")


def test_what_a_run_leaves_behind_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RegisterBench, "set_bases", lambda *_: None)
    assert is_found("next program:")
