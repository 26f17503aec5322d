"""Comparisons of two runs: parts add up to the difference, and totals count only equal work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amaranth_vta import cli
from amaranth_vta.report.changes import changes_json, changes_table, compared
from amaranth_vta.report.chart import COUNTERS
from amaranth_vta.report.measured import MeasuredRun, load_measured

DIGITS = Path(__file__).parents[2] / "examples/digits/digits.onnx"


def entry(
    name: str, cycles: int, runs: int = 1, operator: str = "Conv", macs: int = 0, **counted: int
) -> dict[str, Any]:
    counters = {**dict.fromkeys(COUNTERS, 0), "cycles": cycles, **counted}
    return {
        "name": name, "operator": operator, "placed_on": "machine", "macs": macs * runs,
        "cycles": cycles, "runs": runs, "counters": counters,
    }  # fmt: skip


def on_host(name: str, operator: str = "Conv") -> dict[str, Any]:
    return {"name": name, "operator": operator, "placed_on": "host", "cycles": None}


def summary(macs: int = 0, layers_on_machine: int = 1, **operators: int) -> dict[str, Any]:
    """The summary of host layers in a file."""
    groups = [{"reason": "it", "operators": operators}]
    return {"macs_on_host": macs, "layers_on_machine": layers_on_machine, "host": groups}


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
    comparison = compared(*runs)
    found = {change.name: change for change in comparison.changes}
    assert list(found) == ["conv", "gone", "same", "new"]
    conv = found["conv"]
    assert (conv.before, conv.after, conv.ratio) == (1000, 800, 0.8)
    assert {part: cycles for part, cycles in conv.parts.items() if cycles} == {
        "ALU": -50,
        "anything else": -150,
    }
    assert comparison.total is not None
    for change in (*found.values(), comparison.total):
        assert sum(change.parts.values()) == (change.after or 0) - (change.before or 0)


def test_the_table_says_what_changed_most_and_which_layers_only_one_run_has(
    runs: tuple[MeasuredRun, MeasuredRun],
) -> None:
    lines = changes_table(*runs).splitlines()
    assert lines[1].endswith("b.json, estimated")
    rows = [" ".join(line.split()) for line in lines[4:10]]
    assert rows[0] == "conv anything else −150 1,000 800 0.800"
    assert rows[1:4] == ["gone only in A 50", "same 10 10 1.000", "new only in B 30"]
    assert rows[5] == "equal work anything else −150 1,010 810 0.802"
    notes = " ".join(lines[10:])
    assert "total counts 2 layers with the same work" in notes
    assert "leaves out 50 cycles of A and 30 cycles of B." in notes
    assert all(len(line) <= 80 for line in lines[2:])


def test_the_numbers_are_those_of_the_table(runs: tuple[MeasuredRun, MeasuredRun]) -> None:
    numbers = changes_json(*runs)
    assert numbers["cycles"] == [1010, 810]
    assert numbers["layers_compared"] == 2
    assert not numbers["is_whole"]
    assert [layer["cycles"] for layer in numbers["layers"]][1] == [50, None]
    assert numbers["estimated"] == [False, True]


def test_layers_on_the_host_are_not_in_the_total_and_their_cost_is_in_the_headline(
    tmp_path: Path,
) -> None:
    """A machine that runs a tenth of the work is not ten times as fast."""
    machine = entry("conv", 1000, macs=9600), entry("add", 100, operator="Add")
    first = load_measured(saved(tmp_path / "a.json", *machine, summary=summary()))
    second = load_measured(
        saved(
            tmp_path / "b.json",
            on_host("conv"),
            entry("add", 110, operator="Add"),
            summary=summary(9600, Conv=1),
        )
    )
    lines = changes_table(first, second).splitlines()
    text = " ".join(lines)
    assert "The host of B runs 100.0% of the MACs" in text
    assert "for which the machine would take at least 600 cycles" in text
    rows = [" ".join(line.split()) for line in lines]
    assert "conv on B's host 1,000" in rows
    assert "equal work anything else +10 100 110 1.100" in rows
    numbers = changes_json(first, second)
    assert (numbers["ratio"], numbers["cycles"]) == (1.1, [100, 110])
    assert numbers["host_share"] == [0, 1]
    assert numbers["host_least_cycles"] == [0, 600]


def test_operators_without_macs_on_the_host_are_not_equal_work_either(tmp_path: Path) -> None:
    convolution = entry("conv", 1000, macs=9600)
    first = saved(
        tmp_path / "a.json", convolution, entry("add", 100, operator="Add"), summary=summary()
    )
    second = saved(tmp_path / "b.json", convolution, on_host("add", "Add"), summary=summary(Add=1))
    measured = load_measured(first), load_measured(second)
    assert changes_json(*measured)["cycles"] == [1000, 1000]
    assert "The host of B also runs Add 1." in " ".join(changes_table(*measured).split())


def test_layers_that_are_fused_in_one_run_are_in_the_total_of_the_whole(tmp_path: Path) -> None:
    """Both machines run everything, with different layers."""
    first = saved(
        tmp_path / "a.json",
        entry("conv", 1000, macs=9600),
        entry("add", 100, operator="Add"),
        summary=summary(),
    )
    second = saved(
        tmp_path / "b.json",
        entry("conv", 1050, operator="Conv+Add", macs=9600),
        summary=summary(layout=1),
    )
    found = compared(load_measured(first), load_measured(second))
    assert found.is_whole
    assert [change.ratio for change in found.changes] == [None] * 3
    assert [change.name for change in found.changes] == ["conv (Conv)", "add", "conv (Conv+Add)"]
    assert found.total is not None
    assert (found.total.name, found.total.before, found.total.after) == ("all", 1100, 1050)


def test_layers_of_one_name_with_other_macs_are_not_compared(tmp_path: Path) -> None:
    first = load_measured(saved(tmp_path / "a.json", entry("conv", 1000, macs=9600)))
    second = load_measured(saved(tmp_path / "b.json", entry("conv", 500, macs=4800)))
    found = compared(first, second)
    assert found.total is None
    assert changes_json(first, second)["ratio"] is None
    text = " ".join(changes_table(first, second).split())
    assert "conv 9,600 MACs, 4,800 in B" in text
    assert "No layer does the same work in both runs, so there is no total." in text


def test_runs_of_several_images_are_compared_per_image(tmp_path: Path) -> None:
    """One run of eight images has as many MACs as eight runs of one image."""
    first = saved(tmp_path / "a.json", entry("conv", 1000, macs=100), summary=summary(8))
    second = saved(
        tmp_path / "b.json",
        entry("conv", 4000, macs=800),
        summary=summary(64),
        images_per_run=8,
    )
    found = changes_json(load_measured(first), load_measured(second))
    assert found["per"] == "image"
    assert (found["cycles"], found["ratio"]) == ([1000, 500], 0.5)
    assert found["host_macs"] == [8, 8]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("no JSON", "is not JSON"),
        ('{"layers": [], "layers": []}', "twice"),
        ("{}", "is not what --json"),
        ('{"peak_macs_per_cycle": 16, "estimated": false, "layers": [{"cycles": 1}]}', "is not"),
        ('{"peak_macs_per_cycle": 16, "estimated": false, "layers": []}', "has no cycles"),
        (
            '{"peak_macs_per_cycle": 16, "estimated": false, "layers": [], "summary": '
            '{"host": [], "macs_on_host": 5, "layers_on_machine": 0}}',
            "has no layer on the machine",
        ),
        ('{"peak_macs_per_cycle": 16, "estimated": false, "layers": [], "summary": 3}', "is not"),
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
