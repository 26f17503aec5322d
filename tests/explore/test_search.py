"""Searches propose each combination once, in an order that depends only on the seed."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from amaranth_vta.explore.front import front, sensitivities
from amaranth_vta.explore.plots import LogAxis
from amaranth_vta.explore.search import Values, search_of
from amaranth_vta.explore.spec import Spec, load_spec


def spec_of(folder: Path, method: str, points: int) -> Spec:
    path = folder / "spec.toml"
    path.write_text(
        'networks = "a"\n[parameters]\nLOG_BLOCK = [2, 3, 4, 5]\nLOG_BUS_WIDTH = [6, 7, 8, 9]\n'
        "LOG_BATCH = [0, 1, 2, 3, 4]\n"
        f'[search]\nmethod = "{method}"\npoints = {points}\nbatch = 8\nseed = 3\n'
    )
    return load_spec(path)


def objectives(values: Values) -> tuple[float, float] | None:
    """Two conflicting objectives; None in a part of the space that is illegal."""
    block, bus, batch = values
    if bus == 9 and batch > 2:
        return None
    return 2.0 ** (12 - block - batch) * bus, 2.0 ** (block + batch) * bus


def asked(spec: Spec, count: int) -> list[Values]:
    search, found = search_of(spec), list[Values]()
    while len(found) < count:
        batch = search.ask(min(spec.search.batch, count - len(found)))
        if not batch:
            break
        search.tell({values: objectives(values) for values in batch})
        found += batch
    return found


@pytest.mark.parametrize("method", ["grid", "random", "optuna"])
def test_all_combinations_are_asked_for_once(tmp_path: Path, method: str) -> None:
    found = asked(spec_of(tmp_path, method, 80), 1000)
    assert len(found) == len(set(found)) == 80


@pytest.mark.parametrize("method", ["random", "optuna"])
def test_the_seed_alone_decides(tmp_path: Path, method: str) -> None:
    spec = spec_of(tmp_path, method, 40)
    found = asked(spec, 40)
    assert found == asked(spec, 40)
    assert len(set(found)) == 40


def test_optuna_finds_more_of_the_front_than_chance(tmp_path: Path) -> None:
    everything = itertools.product((2, 3, 4, 5), (6, 7, 8, 9), (0, 1, 2, 3, 4))
    whole = {v: numbers for v in everything if (numbers := objectives(v)) is not None}
    best = set(front(whole))
    hits = {
        method: len(best & set(asked(spec_of(tmp_path, method, 40), 40)))
        for method in ("random", "optuna")
    }
    assert hits["optuna"] > hits["random"]


def test_the_front_is_what_nothing_beats() -> None:
    dice = random.Random(0)
    for _ in range(50):
        size = dice.choice((1, 2, 3))
        found = {
            n: tuple(float(dice.randrange(6)) for _ in range(size))
            for n in range(dice.randrange(30))
        }
        expected = {
            n
            for n, own in found.items()
            if not any(
                other != own and all(a <= b for a, b in zip(other, own, strict=True))
                for other in found.values()
            )
        }
        assert set(front(found)) == expected
        assert [found[n] for n in front(found)] == sorted(found[n] for n in expected)


def test_sensitivity_is_the_share_of_the_variance() -> None:
    found: dict[Values, tuple[float, ...]] = {(a, b): (10.0**a,) for a in (1, 2) for b in (1, 2, 3)}
    first, second = sensitivities({"A": (1, 2), "B": (1, 2, 3)}, ["cycles"], found)
    assert (first.parameter, round(first.share, 9)) == ("A", 1.0)
    assert (second.parameter, round(second.share, 9)) == ("B", 0.0)
    assert [(effect.best, effect.machines) for effect in first.effects] == [(10.0, 3), (100.0, 3)]


@pytest.mark.parametrize(
    ("low", "high"), [(11e3, 23e3), (6e3, 35e3), (0.01, 1), (0.2, 0.8), (100, 101), (1, 1e6)]
)
def test_an_axis_has_a_few_ticks(low: float, high: float) -> None:
    axis = LogAxis.over((low, high), 0, 100)
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 8
    assert all(0 <= axis(tick) <= 100 for tick in ticks)
    assert ticks == sorted(ticks)
