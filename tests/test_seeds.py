"""The decorator that loops over seeds runs them all, and reports which one failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.seeds import each_seed

SEEN: list[int] = []


@each_seed(range(3))
@pytest.mark.parametrize("kind", ["a"])
def test_every_seed_runs_with_fixtures_and_parameters(seed: int, kind: str, tmp_path: Path) -> None:
    assert kind == "a"
    assert tmp_path.is_dir()
    SEEN.append(seed)


def test_each_was_seen() -> None:
    SEEN.clear()
    each_seed([5, 6])(lambda seed: SEEN.append(seed))()
    assert SEEN == [5, 6]


def test_a_failure_names_its_seed() -> None:
    def fails_at_2(seed: int) -> None:
        assert seed != 2

    with pytest.raises(AssertionError) as failure:
        each_seed(range(4))(fails_at_2)()
    assert failure.value.__notes__ == ["seed 2"]


@each_seed(range(5), daily=3)
def test_the_rest_of_the_seeds_runs_nightly(seed: int, request: pytest.FixtureRequest) -> None:
    is_nightly = request.node.get_closest_marker("nightly") is not None
    assert (seed >= 3) == is_nightly
