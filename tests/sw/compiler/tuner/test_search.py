"""Candidates walked through the cost model, and their order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from amaranth_vta.sw.compiler.tuner.cost_model import Estimate
from amaranth_vta.sw.compiler.tuner.search import Candidates, best_of


@dataclass(frozen=True)
class Knobs:
    kind: int
    size: int


def estimate(cycles: float, waits: float = 0.1) -> Estimate:
    """An estimate for a schedule in which GEMM waits in the fraction ``waits`` of the cycles."""
    return Estimate(cycles, (1 - waits) * cycles, 0.0, 0.0, 0.0, 0.0)


def test_few_of_a_kind_come_before_those_of_other_kinds() -> None:
    cycles = np.array([5.0, 1.0, 2.0, 3.0, 4.0])
    fields = {"kind": np.array([1, 0, 0, 0, 1]), "size": np.arange(5)}
    varied = Candidates(cycles, fields, Knobs).varied(["kind"], 2)
    assert [knobs.size for _, knobs in varied] == [1, 2, 4, 0, 3]


def test_variants_are_tried_of_what_comes_near_the_best_without_them() -> None:
    found = {0: 1000.0, 1: 1010.0, 2: 1500.0}
    tried: list[Knobs] = []

    def variants(knobs: Knobs) -> list[Knobs]:
        tried.append(knobs)
        return [Knobs(knobs.kind, 1)]

    def walked(knobs: Knobs, _: float) -> Estimate:
        return estimate(found[knobs.kind] / (2 if knobs.size else 1))

    choice = best_of([(0.0, Knobs(kind, 0)) for kind in found], walked, variants)
    assert tried == [Knobs(0, 0), Knobs(1, 0)]
    assert choice.best == Knobs(0, 1)


def test_variants_are_tried_farther_from_the_best_where_gemm_waits_often() -> None:
    tried: list[int] = []

    def variants(knobs: Knobs) -> list[Knobs]:
        tried.append(knobs.kind)
        return []

    found = {0: (1000.0, 0.1), 1: (1050.0, 0.19), 2: (1050.0, 0.21), 3: (1070.0, 0.3)}
    candidates = [(0.0, Knobs(kind, 0)) for kind in found]
    best_of(candidates, lambda knobs, _: estimate(*found[knobs.kind]), variants)
    assert tried == [0, 2]


def test_neighbours_are_tried_until_no_neighbour_of_the_best_is_better() -> None:
    tried: list[int] = []

    def neighbours(knobs: Knobs) -> list[Knobs]:
        tried.append(knobs.size)
        return [Knobs(0, knobs.size - 1), Knobs(0, knobs.size + 1)]

    def walked(knobs: Knobs, _: float) -> Estimate:
        return estimate(1000.0 + (knobs.size - 3) ** 2)

    choice = best_of([(0.0, Knobs(0, 9)), (1.0, Knobs(0, 0))], walked, neighbours=neighbours)
    assert choice.best == Knobs(0, 3)
    assert tried == [0, 1, 2, 3]


def test_no_neighbours_are_tried_where_gemm_never_waits() -> None:
    choice = best_of(
        [(0.0, Knobs(0, 1))],
        lambda knobs, _: estimate(1000.0 * knobs.size, waits=0.0),
        neighbours=lambda _: [Knobs(0, 0)],
    )
    assert choice.best == Knobs(0, 1)


@pytest.mark.parametrize(("saved", "best"), [(200.0, 0), (300.0, 1)])
def test_a_schedule_may_take_longer_to_save_transfers(saved: float, best: int) -> None:
    """By one cycle for every 25 of the bus."""
    found = [
        Estimate(1000.0, 900.0, 0.0, 500.0, 0.0, 0.0),
        Estimate(1010.0, 900.0, 0.0, 500.0 - saved, 0.0, 0.0),
    ]
    candidates = [(0.0, Knobs(kind, 0)) for kind in range(2)]
    assert best_of(candidates, lambda knobs, _: found[knobs.kind]).best.kind == best


def test_gemm_that_begins_late_is_begun_earlier() -> None:
    """And the neighbours of what is begun earlier are tried, although GEMM does not wait there."""
    late = Estimate(1000.0, 900.0, 0.0, 0.0, 100.0, 0.0)

    def walked(knobs: Knobs, _: float) -> Estimate:
        return late if not knobs.kind else estimate(900.0 - knobs.size, 0.0)

    choice = best_of(
        [(0.0, Knobs(0, 0))],
        walked,
        neighbours=lambda knobs: [Knobs(1, 5)] * knobs.kind,
        begun_earlier=lambda knobs: [Knobs(1, 0)],
    )
    assert choice.best == Knobs(1, 5)
