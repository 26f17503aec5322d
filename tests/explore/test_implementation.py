"""Machines on the Pareto front are implemented with the FPGA tools, which are faked here."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from amaranth_vta import cli
from amaranth_vta.explore import implementation
from amaranth_vta.explore.evaluate import Cost, EvaluationTask
from amaranth_vta.fpga import routing, synthesis
from amaranth_vta.fpga.chips import CHIPS
from amaranth_vta.fpga.tools import Call
from amaranth_vta.sim.energy.technologies import TECHNOLOGIES

DIGITS = Path(__file__).parents[2] / "examples/digits/digits.onnx"
TEXT = f"""
networks = ["{DIGITS}"]
base = "tiny-extended"
rtl = 0
synthesis = 3
route = 2
[parameters]
LOG_BLOCK_IN = [2, 3, 4]
LOG_INP_BUFF_SIZE = [12]
FORWARD = [0]
[limits]
device = "ecp5-85f"
[search]
method = "grid"
"""
SOURCE = "module vta; endmodule"
NETLIST = {
    "modules": {
        "vta": {
            "attributes": {"top": "1"},
            "cells": {},
            "ports": {
                "clk": {"direction": "input", "bits": [2]},
                "rst": {"direction": "input", "bits": [3]},
                "irq": {"direction": "output", "bits": [4]},
            },
        },
        "DP16KD": {"attributes": {}, "cells": {}, "ports": {}},
    }
}
CELLS = {"LUT4": 100, "CCU2C": 10, "TRELLIS_FF": 50, "MULT18X18D": 28, "DP16KD": 3}


def cost(task: EvaluationTask, _: bytes) -> Cost:
    """More multipliers take fewer cycles, so all three machines are on the Pareto front."""
    columns = json.loads(task.config)["LOG_BLOCK_IN"]
    return Cost(1, 1000 >> columns, 1, 64, 0, (), dict.fromkeys(TECHNOLOGIES, 0.0))


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Calls of the tools."""
    done: list[Call] = []

    def run(call: Call, folder: Path) -> None:
        done.append(call)
        if call.tool.name == "YOSYS":
            assert (folder / "vta.v").read_text() == SOURCE
            area = {"design": {"num_cells_by_type": CELLS}}
            (folder / "area.json").write_text(json.dumps(area))
            assert "write_json netlist.json" in call.arguments[-1]
            (folder / "netlist.json").write_text(json.dumps(NETLIST))
            return
        # The machine's buses get no pins; its clock and reset do, so that they become global
        # signals.
        modules = json.loads((folder / "netlist.json").read_text())["modules"]
        assert set(modules["vta"]["ports"]) == {"clk", "rst"}
        assert modules["DP16KD"] == NETLIST["modules"]["DP16KD"]
        report = {"utilization": {}, "fmax": {"clk": {"achieved": 61.5}}}
        (folder / "report.json").write_text(json.dumps(report))
        (folder / "placed.json").write_text('{"modules": {}}')

    monkeypatch.setenv("VTA_CACHE", str(tmp_path / "cache"))
    for module in (synthesis, routing):
        monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(synthesis, "system_verilog", lambda _: SOURCE)
    monkeypatch.setattr(implementation, "version_of", lambda tool: f"{tool.package} 1.2")
    monkeypatch.setattr("amaranth_vta.explore.exploration.evaluate", cost)
    return done


class InProcess:
    """Does the work in this process."""

    def share(self, data: dict[str, bytes]) -> None:
        pass

    def run(self, work, items):  # type: ignore[no-untyped-def]
        from amaranth_vta.explore.workers import _guarded

        for number, (item, _) in enumerate(items):
            yield number, _guarded(work, item, b"")

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_what_is_asked_for_is_synthesized_and_routed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    calls: list[Call],
) -> None:
    opened = "amaranth_vta.cli.measurements.explore.open_workers"
    monkeypatch.setattr(opened, lambda *_: InProcess())
    spec, out = tmp_path / "spec.toml", tmp_path / "out"
    spec.write_text(TEXT)
    assert cli.invoke(["explore", str(spec), "-o", str(out)]) == 0
    # Both ends of the front are routed, and the points between them.
    assert [call.tool.name for call in calls] == [
        *("YOSYS", "NEXTPNR_ECP5", "YOSYS", "NEXTPNR_ECP5", "YOSYS"),
    ]
    assert {"--85k", "--lpf-allow-unconstrained", "--seed"} <= set(calls[1].arguments)
    assert "--out-of-context" not in calls[1].arguments
    said = capsys.readouterr().out
    assert "lut by synthesis" in said
    with (out / "results.csv").open(newline="") as file:
        rows = {row["LOG_BLOCK_IN"]: row for row in csv.DictReader(file)}
    made = {key: (row["synthesized_lut"], row["routed_mhz"]) for key, row in rows.items()}
    assert made == {"4": ("120", "61.5"), "3": ("120", ""), "2": ("120", "61.5")}
    assert {row["synthesized_bram36"] for row in rows.values()} == {"1.5"}
    page = (out / "report.html").read_text()
    assert page.count("<td>61.5</td>") == 2
    assert "front-03.json --dram ddr --device estimate" in page
    # Already known, so not repeated.
    assert cli.invoke(["explore", str(spec), "-o", str(out)]) == 0
    assert len(calls) == 5
    # Another version of a tool may give other results.
    monkeypatch.setattr(implementation, "version_of", lambda tool: f"{tool.name} 1.3")
    assert cli.invoke(["explore", str(spec), "-o", str(out)]) == 0
    assert len(calls) == 10


def test_clocks_are_those_of_the_bitstreams() -> None:
    """Clocks may also be lower, since a bitstream may have become faster."""
    for folder, chip in (("colorlight-i5", "ecp5-25f"), ("ulx3s", "ecp5-85f")):
        path = Path(__file__).parents[2] / "bitstreams" / folder / "manifest.json"
        manifest = json.loads(path.read_text())
        assert manifest["config"] in CHIPS[chip].routed
        assert 0.8 * manifest["fmax_mhz"] < CHIPS[chip].clock_mhz <= manifest["fmax_mhz"]
