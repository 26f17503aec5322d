"""Explorations as the command runs them: interruptions do not change their results."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amaranth_vta import cli
from amaranth_vta.explore.evaluate import EvaluationTask, evaluate
from amaranth_vta.explore.exploration import Exploration, read_networks
from amaranth_vta.explore.folder import Folder
from amaranth_vta.explore.page import source_of
from amaranth_vta.explore.spec import Spec, SpecError, load_spec
from amaranth_vta.explore.workers import TaskOutcome
from amaranth_vta.sim.energy.technologies import TECHNOLOGIES

DIGITS = Path(__file__).parents[2] / "examples/digits/digits.onnx"
TEXT = f"""
networks = ["{DIGITS}"]
base = "tiny-extended"
rtl = 0
[parameters]
LOG_BLOCK = [2, 3]
LOG_BUS_WIDTH = [6, 7]
LOG_UOP_BUFF_SIZE = [10, 40]
[search]
method = "grid"
batch = 8
"""


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, except for the compiled estimate, which takes seconds to build."""
    from amaranth_vta.sim.cache import cache_folder
    from amaranth_vta.sim.estimate.library import library

    library()
    for name in ("cache", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "estimate").symlink_to(cache_folder() / "estimate")
    monkeypatch.setenv("VTA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def spec_path(tmp_path: Path) -> Path:
    path = tmp_path / "spec.toml"
    path.write_text(TEXT)
    return path


class InProcess:
    """Workers in this process: evaluate in reverse order, count, and interrupt after ``most``
    items.
    """

    def __init__(self, most: int = 1000) -> None:
        self.done: list[EvaluationTask] = []
        self._most = most

    def share(self, data: dict[str, bytes]) -> None:
        self._data = data

    def run(
        self, work: Callable[[Any, bytes], Any], items: Sequence[tuple[Any, str]]
    ) -> Iterator[tuple[int, TaskOutcome[Any]]]:
        for number, (item, name) in reversed(list(enumerate(items))):
            if len(self.done) == self._most:
                raise KeyboardInterrupt
            self.done.append(item)
            yield number, TaskOutcome(work(item, self._data[name]))


def explored(spec: Spec, path: Path, workers: InProcess, resume: bool = False) -> bytes:
    exploration = Exploration(spec, read_networks(spec))
    with Folder(path, spec, exploration.digests, resume) as folder:
        exploration.run(folder, workers, lambda _: None)  # type: ignore[arg-type]
    return (path / "results.csv").read_bytes()


def test_a_stopped_exploration_goes_on(
    spec_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = load_spec(spec_path)
    whole = explored(spec, tmp_path / "whole", InProcess())
    with pytest.raises(KeyboardInterrupt):
        explored(spec, tmp_path / "part", InProcess(most=2))
    # Simulates a kill in the middle of a line.
    table = tmp_path / "part" / "results.csv"
    table.write_bytes(table.read_bytes()[:-9])
    monkeypatch.setenv("VTA_CACHE", str(tmp_path / "other"))
    workers = InProcess()
    assert explored(spec, tmp_path / "part", workers, resume=True) == whole
    assert len(workers.done) == 3  # of four: one is in the file
    workers = InProcess()
    assert explored(spec, tmp_path / "part", workers, resume=True) == whole
    assert not workers.done


def test_a_known_point_is_not_computed_again(
    spec_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = load_spec(spec_path)
    whole = explored(spec, tmp_path / "first", InProcess())
    monkeypatch.setattr("amaranth_vta.explore.evaluate._estimate", None)
    assert explored(spec, tmp_path / "second", InProcess()) == whole


def test_energies_in_all_technologies_are_columns_and_limits(tmp_path: Path) -> None:
    names = [f"energy_{name}" for name in TECHNOLOGIES]
    path = tmp_path / "spec.toml"
    least = TEXT.replace("[2, 3]", "[2]").replace("[6, 7]", "[6]").replace("[10, 40]", "[10]")

    def line(limits: str) -> dict[str, str]:
        path.write_text(f"{least}[limits]\n{limits}")
        text = explored(load_spec(path), tmp_path / f"run {limits}", InProcess()).decode()
        (found,) = csv.DictReader(text.splitlines())
        return found

    found = line("")
    energies = {name: int(found[name]) for name in names}
    assert sorted(names, key=lambda name: energies[name]) == [
        *("energy_7nm", "energy_28nm", "energy_45nm", "energy_xc7", "energy_ecp5")
    ]
    for name, energy in energies.items():
        assert line(f"{name} = {energy}")["status"] == "ok"
        over = line(f"{name} = {energy - 1}")
        assert over["status"] == "over limit"
        assert over["reason"].startswith(name)


def test_another_spec_is_not_resumed(spec_path: Path, tmp_path: Path) -> None:
    spec = load_spec(spec_path)
    explored(spec, tmp_path / "dir", InProcess())
    spec_path.write_text(TEXT.replace("[6, 7]", "[6]"))
    other = load_spec(spec_path)
    with pytest.raises(SpecError, match="has the results of another SPEC"):
        explored(other, tmp_path / "dir", InProcess(), resume=True)
    assert explored(other, tmp_path / "dir", InProcess()).count(b"\n") == 1 + 4


def test_a_folder_with_other_things_is_left_alone(spec_path: Path, tmp_path: Path) -> None:
    spec = load_spec(spec_path)
    with pytest.raises(SpecError, match="holds other files"):
        explored(spec, tmp_path, InProcess())


def test_one_process_explores_in_a_folder(spec_path: Path, tmp_path: Path) -> None:
    spec = load_spec(spec_path)
    with (
        Folder(tmp_path / "dir", spec, {}, False),
        pytest.raises(SpecError, match="another process"),
    ):
        Folder(tmp_path / "dir", spec, {}, True)


def test_a_network_is_the_same_for_each_machine(
    spec_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling does not change the network that a worker keeps."""
    spec = load_spec(spec_path)
    (model,) = read_networks(spec).values()
    tasks = [
        EvaluationTask("digits", spec.base.to_json(), memory) for memory in ("ddr", "ideal", "ddr")
    ]
    first = evaluate(tasks[0], model)
    monkeypatch.setenv("VTA_CACHE", str(tmp_path / "other"))
    evaluate(tasks[1], model)
    assert evaluate(tasks[2], model) == first


def test_results_survive_a_kill(
    spec_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs the command itself: kills it with all its workers, resumes it, and reads its files."""
    out = tmp_path / "out"
    arguments = ["explore", str(spec_path), "-o", str(out), "--jobs", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "amaranth_vta", *arguments], start_new_session=True
    )
    table = out / "results.csv"
    deadline = time.monotonic() + 120
    while not (table.exists() and table.read_text().count(",ok,") >= 1):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert cli.invoke([*arguments, "--resume"]) == 0
    said = capsys.readouterr()
    assert "4  illegal: LOG_UOP_BUFF_SIZE = N is not a whole number from N to N" in said.out
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["point"]) for row in rows] == list(range(1, 9))
    assert [row["status"] for row in rows] == ["ok", "illegal"] * 4
    assert table.read_bytes() == explored(load_spec(spec_path), tmp_path / "again", InProcess())
    best = sorted((out / "machines").iterdir())
    assert len(best) == sum(row["front"] == "1" for row in rows)
    first = json.loads(best[0].read_text())
    first["LOG_BLOCK"] = first["LOG_BLOCK_OUT"]
    keys = ("LOG_BLOCK", "LOG_BUS_WIDTH")
    row = next(
        row
        for row in rows
        if row["front"] == "1" and all(row[key] == str(first[key]) for key in keys)
    )
    call = ["run", str(DIGITS), "--config", str(best[0]), "--device", "estimate", "--timing-only"]
    capsys.readouterr()
    assert cli.invoke([*call, "--dram", "ddr", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["cycles"] == int(row["cycles"])
    page = (out / "report.html").read_text()
    for part in ("Pareto front", "What each parameter does", "Roofline of digits", "front-01.json"):
        assert part in page


def test_an_unknown_network_is_refused(
    spec_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec_path.write_text(TEXT.replace(str(DIGITS), "resnet9"))
    assert cli.invoke(["explore", str(spec_path), "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("vta: networks: resnet9 is neither a file nor one of resnet18")
    assert not (tmp_path / "out").exists()


def test_a_network_is_found_by_its_whole_name(spec_path: Path) -> None:
    spec = replace(load_spec(spec_path), networks=("nets/mynet.onnx", "net.onnx", "mlp"))
    assert [source_of(spec, label) for label in ("net", "mynet", "mlp")] == [
        *("net.onnx", "nets/mynet.onnx", "mlp"),
    ]
