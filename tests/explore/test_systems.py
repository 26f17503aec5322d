"""Explorations whose parameters are the number of machines and the width of their bus."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import pytest

from amaranth_vta import cli
from amaranth_vta.explore.evaluate import EvaluationTask, evaluate, simulate
from amaranth_vta.explore.machines import ILLEGAL, machine_of
from amaranth_vta.explore.spec import SpecError, load_spec
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.system.parameters import SystemConfig

DIGITS = Path(__file__).parents[2] / "examples/digits/digits.onnx"
TEXT = f"""
networks = ["{DIGITS}"]
base = "tiny-extended"
rtl = 0
split = false
[parameters]
MACHINES = [1, 2]
MEMORY_BUS = [64, 128]
[limits]
device = "xc7z045"
[search]
method = "grid"
"""


@pytest.fixture(autouse=True)
def kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known from earlier explorations; simulators are."""
    from amaranth_vta.sim.cache import cache_folder

    (tmp_path / "cache").mkdir()
    for kept in cache_folder().iterdir():
        if kept.name != "explore":
            (tmp_path / "cache" / kept.name).symlink_to(kept)
    monkeypatch.setenv("VTA_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("split", [False, True])
def test_the_commands_of_the_report_take_the_cycles_of_the_table(
    split: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, out = tmp_path / "spec.toml", tmp_path / "out"
    spec.write_text(TEXT.replace("split = false", f"split = {str(split).lower()}"))
    arguments = ["explore", str(spec), "-o", str(out), "--jobs", "1"]
    assert cli.invoke(arguments) == 0
    assert "1  illegal: a single machine has a memory bus of N bits" in capsys.readouterr().out
    with (out / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {(row["MACHINES"], row["MEMORY_BUS"]): row for row in rows}
    assert [row["status"] for row in rows] == ["ok", "illegal", "ok", "ok"]
    # As many cycles in all, or about half of them, of images that are two, or one.
    one, narrow, wide = (found[key] for key in (("1", "64"), ("2", "64"), ("2", "128")))
    assert [row["images"] for row in (one, narrow, wide)] == (["1"] * 3 if split else [*"122"])
    cycles = [int(row["cycles"]) / int(row["images"]) for row in (one, narrow, wide)]
    assert 0.5 <= cycles[2] / cycles[0] < 0.7
    assert cycles[0] > cycles[1] > cycles[2]
    assert int(wide["lut"]) > int(narrow["lut"]) > 2 * int(one["lut"])
    assert int(wide["dsp"]) == 2 * int(one["dsp"])
    assert [row["front"] for row in rows] == ["1", "0", "1", "1"]
    # The commands of the report, in the order of the front.
    page = (out / "report.html").read_text()
    lines = [line for line in page.splitlines() if "estimate --timing-only" in line]
    front = [wide, narrow, one]
    assert len(lines) == len(front)
    for line, row in zip(lines, front, strict=True):
        call = shlex.split(line[line.index("vta run") :])[1:]
        assert ("--split" in call) == (split and row is not one)
        capsys.readouterr()
        assert cli.invoke([*call, "--json", "-"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["cycles"] == int(row["cycles"])
        assert report["macs"] == int(row["macs"])
        assert report["utilization"] == pytest.approx(float(row["utilization"]), abs=1e-4)
    assert "vta verilog --config" in page
    assert "Roofline of digits" in page
    assert ("only whole launches are timed" in page) != split
    # A resumed exploration finds all results in its table.
    table = (out / "results.csv").read_bytes()
    assert cli.invoke([*arguments, "--resume"]) == 0
    assert (out / "results.csv").read_bytes() == table


@pytest.mark.parametrize("split", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_point_of_two_machines_runs_on_the_rtl(split: bool) -> None:
    system = SystemConfig(PRESETS["tiny"], 2)
    task = EvaluationTask.of("digits", system, "ddr", split)
    model = DIGITS.read_bytes()
    cost, simulated = evaluate(task, model), simulate(task, model)
    assert simulated.mismatches == 0
    assert cost.cycles == pytest.approx(simulated.cycles, rel=0.02)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT.replace("MACHINES = [1, 2]\n", ""), "MEMORY_BUS is of several machines"),
        (TEXT.replace("split = false", "split = 1"), "split = 1 is neither true nor false"),
        (
            'networks = "a"\nsplit = true\n[parameters]\nLOG_BLOCK = [2]',
            "split divides images between machines: add parameters.MACHINES",
        ),
    ],
)
def test_contradictions_are_named(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(text)
    with pytest.raises(SpecError, match=said):
        load_spec(path)


def test_a_system_is_legal_or_says_why_not(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(TEXT.replace("[1, 2]", "[1, 2, 9]"))
    spec = load_spec(path)
    assert machine_of(spec, (2, 64)).system == SystemConfig(PRESETS["tiny-extended"], 2, 64)
    for values, said in (((1, 128), "a single machine"), ((9, 64), "MACHINES = 9 is not")):
        machine = machine_of(spec, values)
        assert machine.status == ILLEGAL
        assert said in machine.reason
