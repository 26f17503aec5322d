"""Two runs compared: parts add up to the difference, layers are matched by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amaranth_vta import cli
from amaranth_vta.report.changes import changes, changes_json, changes_table, total
from amaranth_vta.report.chart import COUNTERS
from amaranth_vta.report.measured import MeasuredRun, load_measured

DIGITS = Path(__file__).parents[2] / "examples/digits/digits.onnx"


def entry(name: str, cycles: int, runs: int = 1, **counted: int) -> dict[str, Any]:
    counters = {**dict.fromkeys(COUNTERS, 0), "cycles": cycles, **counted}
    return {
        "name": name, "operator": "Conv", "macs": 0, "cycles": cycles, "runs": runs,
        "counters": counters,
    }  # fmt: skip


def saved(path: Path, *layers: dict[str, Any], **changed: Any) -> str:
    data = {"peak_macs_per_cycle": 16, "estimated": False, "layers": layers, **changed}
    path.write_text(json.dumps(data))
    return str(path)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[MeasuredRun, MeasuredRun]:
    first = saved(
        tmp_path / "a.json",
        entry("conv", 1000, gemm_busy=700, alu_busy=100),
        entry("gone", 50),
        entry("same", 10),
    )
    second = saved(
        tmp_path / "b.json",
        entry("conv", 1600, 2, gemm_busy=1400, alu_busy=100),
        entry("same", 10),
        entry("new", 30),
        estimated=True,
    )
    return load_measured(first), load_measured(second)


def test_parts_add_up_to_the_difference(runs: tuple[MeasuredRun, MeasuredRun]) -> None:
    found = {change.name: change for change in changes(*runs)}
    assert list(found) == ["conv", "gone", "same", "new"]
    conv = found["conv"]
    assert (conv.before, conv.after, conv.ratio) == (1000, 800, 0.8)
    assert {part: cycles for part, cycles in conv.parts.items() if cycles} == {
        "ALU": -50,
        "anything else": -150,
    }
    for change in (*found.values(), total(list(found.values()))):
        assert sum(change.parts.values()) == (change.after or 0) - (change.before or 0)


def test_the_table_says_what_changed_most_and_which_layers_only_one_run_has(
    runs: tuple[MeasuredRun, MeasuredRun],
) -> None:
    lines = changes_table(*runs).splitlines()
    assert lines[1].endswith("b.json, estimated")
    rows = [" ".join(line.split()) for line in lines[4:10]]
    assert rows[0] == "conv anything else −150 1,000 800 0.800"
    assert rows[1:4] == ["gone only in A 50", "same 10 10 1.000", "new only in B 30"]
    assert rows[5] == "all anything else −170 1,060 840 0.792"
    assert all(len(line) <= 80 for line in lines[2:])


def test_the_numbers_are_those_of_the_table(runs: tuple[MeasuredRun, MeasuredRun]) -> None:
    numbers = changes_json(*runs)
    assert numbers["cycles"] == [1060, 840]
    assert [layer["cycles"] for layer in numbers["layers"]][1] == [50, None]
    assert numbers["estimated"] == [False, True]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("no JSON", "is not JSON"),
        ('{"layers": [], "layers": []}', "twice"),
        ("{}", "is not what --json"),
        ('{"peak_macs_per_cycle": 16, "estimated": false, "layers": [{"cycles": 1}]}', "is not"),
        ('{"peak_macs_per_cycle": 16, "estimated": false, "layers": []}', "has no cycles"),
    ],
)
def test_a_file_of_another_kind_is_refused(
    text: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    assert cli.invoke(["compare", str(path), str(path)]) == 2
    assert what in capsys.readouterr().err


def test_runs_of_a_network_on_two_memories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / f"{dram}.json") for dram in ("ideal", "ddr")]
    for dram, file in zip(("ideal", "ddr"), files, strict=True):
        run = ["run", str(DIGITS), "--device", "estimate", "--dram", dram, "--json", file]
        assert cli.invoke(run) == 0
    page = tmp_path / "page.html"
    capsys.readouterr()
    assert cli.invoke(["compare", *files, "--html", str(page), "--json", "-"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    for number, file in enumerate(files):
        run_cycles = json.loads(Path(file).read_text())["cycles"]
        assert numbers["cycles"][number] == run_cycles
    assert numbers["ratio"] > 1
    assert "waits for load" in page.read_text()
