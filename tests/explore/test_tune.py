"""Tuned schedules are never slower, have equal results, and are read from a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from amaranth_vta import cli
from amaranth_vta.explore.tuning import Tried, TuningTask, records_of, tune_layer, workloads_of
from amaranth_vta.explore.workers import TaskOutcome
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.concatenate import Concatenate, concatenate
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile
from amaranth_vta.sw.compiler.tuner.records import (
    Record,
    Records,
    RecordsError,
    knobs_from,
    workload_name,
)
from amaranth_vta.sw.compiler.tuner.workload import choose

DIGITS = Path(__file__).parents[2] / "examples/digits/digits.onnx"
CONFIG = PRESETS["tiny-extended"]


class InProcess:
    """Does the work of workers in this process."""

    def share(self, data: dict[str, bytes]) -> None:
        pass

    def run(
        self, work: Callable[[Any, bytes], Any], items: Sequence[tuple[Any, str]]
    ) -> Iterator[tuple[int, TaskOutcome[Any]]]:
        for number, (item, _) in enumerate(items):
            yield number, TaskOutcome(work(item, b""))


@pytest.fixture(scope="module")
def workloads() -> list[Any]:
    return workloads_of(DIGITS.read_bytes(), CONFIG, None)


def record(name: str, cycles: int, **knobs: int) -> Record:
    return Record(name, CONFIG, knobs, cycles, 100, "ddr")


def test_the_best_of_what_was_tried_is_no_slower(workloads: list[Any]) -> None:
    for workload in workloads:
        tried = tune_layer(TuningTask(workload, CONFIG, "ddr", 4), b"")
        assert 0 < tried.cycles <= tried.default_cycles
        assert tried.tried <= 4


def test_recorded_knobs_are_those_that_are_built(workloads: list[Any], tmp_path: Path) -> None:
    """Knobs in a file that differ from the compiler's give other cycles and the same results."""
    found = {
        number: Tried(2, 1, 2, vars(list(choose(workload, CONFIG).ranked)[-1]), 1, 0)
        for number, workload in enumerate(workloads)
    }
    path = tmp_path / "tuned.json"
    path.write_text(records_of(found, workloads, CONFIG, "ddr").to_json())
    cycles = []
    for tuned in (None, path):
        with Session(DIGITS, CONFIG, "estimate", tuned=tuned) as session:
            inputs = {name: session_inputs(session)[name] for name in session.inputs}
            assert session.check(inputs).ok
            cycles.append(session.cycles)
    assert cycles[0] != cycles[1]


def session_inputs(session: Session) -> dict[str, Any]:
    from amaranth_vta.session import random_inputs

    return random_inputs(session)


def test_records_merge_to_the_better() -> None:
    first, second = Records(), Records()
    for records, cycles in ((first, (9, 5)), (second, (7, 6))):
        for name, count in zip("ab", cycles, strict=True):
            records.add(record(name, count, rows=count))
    for item in second:
        first.add(item)
    assert {item.workload: item.cycles for item in first} == {"a": 7, "b": 5}


def test_a_record_is_of_one_machine_and_one_workload(workloads: list[Any]) -> None:
    records = Records()
    best = choose(workloads[0], CONFIG).best
    records.add(Record(workload_name(workloads[0]), CONFIG, vars(best), 1, 2, "ddr"))
    assert records.knobs(workloads[0], CONFIG) == best
    assert records.knobs(workloads[1], CONFIG) is None
    assert records.knobs(workloads[0], replace(CONFIG, log_bus_width=7)) is None


def test_records_of_an_earlier_version_lack_knobs_with_defaults(workloads: list[Any]) -> None:
    best = choose(workloads[0], CONFIG).best
    for missing, found in (("added_copies", best), ("rows", None)):
        knobs = {name: value for name, value in vars(best).items() if name != missing}
        records = Records()
        records.add(record(workload_name(workloads[0]), 1, **knobs))
        assert records.knobs(workloads[0], CONFIG) == found


def test_knobs_that_do_not_fit_are_passed_over(workloads: list[Any]) -> None:
    """For instance knobs of another version: the compiler's own choice replaces them."""
    found = {}
    for number, workload in enumerate(workloads):
        knobs = vars(choose(workload, CONFIG).best)
        large = {name: 1 << 14 if type(value) is int else value for name, value in knobs.items()}
        found[number] = Tried(2, 1, 2, large, 1, 0)
    records = records_of(found, workloads, CONFIG, "ddr")
    records.add(record(workload_name(workloads[0]), 0, unknown=3))
    with Session(DIGITS, CONFIG, tuned=records) as session:
        assert session.check(session_inputs(session)).ok


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "amaranth-vta tuning", "version": 2, "records": []}',
        '{"format": "amaranth-vta tuning", "version": 1, "records": [{}]}',
        '{"format": "amaranth-vta tuning", "version": 1, "records": [[1]]}',
        json.dumps(json.loads(Records({("a", CONFIG): record("a", 1)}).to_json()))[:-9],
        Records({("a", CONFIG): record("a", 1)}).to_json().replace('"cycles": 1', '"cycles": "1"'),
        Records({("a", CONFIG): record("a", 1)}).to_json().replace("LOG_BATCH", "LOG_BOTCH"),
    ],
)
def test_a_damaged_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(RecordsError, match="is not what `vta tune` writes"):
        Records.load(path)
    assert cli.invoke(["run", str(DIGITS), "--tuned", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_writes_what_run_and_compile_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "amaranth_vta.cli.networks.tune.open_workers", lambda *_: nullcontext(InProcess())
    )
    records, machine = tmp_path / "tuned.json", ["--config", "tiny"]
    call = ["tune", str(DIGITS), "-o", str(records), *machine, "--candidates", "12"]
    assert cli.invoke([*call, "--json", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["cycles"] < report["default_cycles"]
    assert report["improved"] == len(Records.load(records))
    assert len(report["layers"]) == report["workloads"]
    for layer in report["layers"]:
        assert layer["cycles"] <= layer["default_cycles"] <= layer["worst_cycles"]
    assert 0 < report["bound_cycles"] < report["cycles"]
    compiled = tmp_path / "digits.vta"
    tuned = ["--tuned", str(records)]
    assert cli.invoke(["compile", str(DIGITS), "-o", str(compiled), *machine, *tuned]) == 0
    found = []
    for source, options in ((DIGITS, tuned), (compiled, []), (DIGITS, [])):
        capsys.readouterr()
        arguments = ["--device", "estimate", "--dram", "ddr", "--json", "-", *machine, *options]
        assert cli.invoke(["run", str(source), *arguments]) == 0
        found.append(json.loads(capsys.readouterr().out)["cycles"])
    assert found == [report["cycles"], report["cycles"], report["default_cycles"]]


def test_a_network_without_layers_on_the_machine_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = tmp_path / "tuned.json"
    assert cli.invoke(["tune", str(DIGITS), "-o", str(records), "--config", "int4"]) != 0
    assert "no layer of" in capsys.readouterr().err
    assert not records.exists()


def test_a_generated_network_has_a_name(tmp_path: Path) -> None:
    from amaranth_vta.cli.networks.tune import _source
    from amaranth_vta.networks import generate

    assert _source("mlp", {}) == generate("mlp").model.SerializeToString(deterministic=True)
    assert _source(str(DIGITS), {}) != _source("digits", {})


def test_records_of_tiles_are_read_again(tmp_path: Path) -> None:
    """The knobs of operators that move tiles have a list of extents."""
    workload = Concatenate(1, (32, 32), 90)
    knobs = list(choose(workload, CONFIG).ranked)[1]
    tried = {0: Tried(2, 1, 2, asdict(knobs), 1, 0)}
    path = tmp_path / "tuned.json"
    path.write_text(records_of(tried, [workload], CONFIG, "ddr").to_json())
    records = Records.load(path)
    assert records.knobs(workload, CONFIG) == knobs
    with knobs_from(records.knobs):
        assert concatenate(workload, Environment(CONFIG)).nbytes(0) > 0


def test_tiles_of_another_number_of_axes_are_passed_over() -> None:
    workload = Concatenate(1, (32, 32), 90)
    with knobs_from(lambda *_: OutputTile((1, 2))):
        assert concatenate(workload, Environment(CONFIG)).nbytes(0) > 0
