"""No results are lost when workers die."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from amaranth_vta.cli import invoke
from amaranth_vta.explore.workers import Workers, WorkersError


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2, None) as pool:
        pool.share({"data": b"abc"})
        yield pool


def length(item: int, data: bytes) -> int:
    return item + len(data)


def dies_once(item: str, data: bytes) -> bytes:
    """Ends the worker's process the first time."""
    mark = Path(item)
    if not mark.exists():
        mark.touch()
        os._exit(9)
    return data


def dies(item: str, data: bytes) -> bytes:
    if item:
        os._exit(9)
    return data


def fails(item: int, data: bytes) -> int:
    raise ValueError(f"{item} is wrong")


def test_each_item_has_its_outcome(workers: Workers) -> None:
    outcomes = dict(workers.run(length, [(n, "data") for n in range(5)]))
    assert {n: outcome.result for n, outcome in outcomes.items()} == {n: n + 3 for n in range(5)}


def test_a_scheduler_is_reached_by_its_address(workers: Workers) -> None:
    with Workers(None, workers._cluster.scheduler_address) as others:
        assert others.count == 2
        others.share({"more": b"abcde"})
        ((_, outcome),) = others.run(length, [(1, "more")])
    assert outcome.result == 6
    # The workers remain usable.
    assert [outcome.result for _, outcome in workers.run(length, [(1, "data")])] == [4]


def test_an_exception_is_told_in_one_line(workers: Workers) -> None:
    ((_, outcome),) = workers.run(fails, [(7, "data")])
    assert (outcome.result, outcome.error) == (None, "ValueError: 7 is wrong")


def test_what_a_dead_worker_had_is_done_by_another(workers: Workers, tmp_path: Path) -> None:
    items = [(str(tmp_path / str(n)), "data") for n in range(2)]
    outcomes = dict(workers.run(dies_once, items))
    assert [outcomes[n].result for n in range(2)] == [b"abc"] * 2


def test_an_item_that_kills_every_worker_is_told(workers: Workers) -> None:
    outcomes = dict(workers.run(dies, [("dies", "data"), ("", "data")]))
    assert outcomes[0].result is None
    assert "the workers that ran it died" in outcomes[0].error
    assert outcomes[1].result == b"abc"


def test_fuzzing_finds_the_same_on_a_scheduler(workers: Workers, tmp_path: Path) -> None:
    arguments = ["fuzz", "--programs", "6", "--devices", "functional", "--keep", str(tmp_path)]
    found = []
    for who in (["--jobs", "1"], ["--scheduler", workers._cluster.scheduler_address]):
        path = tmp_path / "found.json"
        assert invoke([*arguments, *who, "--json", str(path)]) == 0
        found.append(json.loads(path.read_text()) | {"seconds": None})
    assert found[0] == found[1]
    assert found[0]["programs"] == 6


def test_fuzzing_tells_what_is_wrong_with_a_scheduler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("amaranth_vta.explore.workers._CONNECT_SECONDS", 1)
    fuzz = [
        "fuzz",
        "--programs",
        "1",
        "--devices",
        "functional",
        "--scheduler",
        "tcp://127.0.0.1:9",
    ]
    for more, message in (
        ([], "no worker at the scheduler tcp://127.0.0.1:9"),
        (["--jobs", "2"], "with --scheduler, its workers do the work"),
    ):
        assert invoke([*fuzz, *more]) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert invoke(fuzz) == 2
    assert "amaranth-vta[explore]" in capsys.readouterr().err


def test_a_worker_that_fails_is_told(workers: Workers) -> None:
    with pytest.raises(WorkersError, match="a worker failed: ValueError: invalid literal"):
        list(workers.map(int, ["1", "one"]))


def test_a_scheduler_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amaranth_vta.explore.workers._CONNECT_SECONDS", 1)
    with pytest.raises(WorkersError, match="no worker at the scheduler tcp://127.0.0.1:9"):
        Workers(None, "tcp://127.0.0.1:9")
