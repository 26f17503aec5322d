"""Pausing the garbage collector."""

from __future__ import annotations

import gc
import weakref

import pytest

from amaranth_vta import collector


class Cycle:
    """An object that only the garbage collector frees."""

    def __init__(self) -> None:
        self.itself = self


def test_nothing_is_collected_while_paused_and_the_collector_runs_afterwards() -> None:
    with collector.collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_garbage_of_many_pauses_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "_COLLECTED_AFTER", 1000)
    monkeypatch.setattr(collector, "_made", 0)
    gc.freeze()  # the objects of earlier tests, which would be scanned each time
    left: list[weakref.ref[Cycle]] = []
    for _ in range(20):
        with collector.collector_paused():
            cycles = [Cycle() for _ in range(100)]
            left += map(weakref.ref, cycles)
            del cycles
    gc.unfreeze()
    alive = sum(reference() is not None for reference in left)
    assert alive <= 1200
