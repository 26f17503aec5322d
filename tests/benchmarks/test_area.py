"""``benchmarks/area.py`` synthesizes the netlist of each machine only once."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.system.parameters import SystemConfig

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Any, list[SystemConfig]]:
    """The benchmark with a cache of its own, and the list of machines synthesized so far."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("VTA_CACHE", str(tmp_path / "cache"))
    area = importlib.import_module("area")
    machines: list[SystemConfig] = []

    def synthesized(system: SystemConfig, family: str, netlist: Path) -> None:
        machines.append(system)
        netlist.write_text(f"netlist {len(machines)}")

    monkeypatch.setattr(area, "synthesized_area", synthesized)
    monkeypatch.setattr(area, "verilog", repr)
    monkeypatch.setattr(area, "version_of", lambda tool: "yosys 1")
    return area, machines


def test_the_netlist_of_a_machine_is_kept(made: tuple[Any, list[SystemConfig]]) -> None:
    area, machines = made
    first = area.netlist_of(PRESETS["tiny"], "ecp5")
    assert area.netlist_of(PRESETS["tiny"], "ecp5") == first
    assert first.read_text() == "netlist 1"
    assert machines == [SystemConfig(PRESETS["tiny"], 1)]


@pytest.mark.parametrize(
    "changed",
    [
        ("verilog", lambda config: "another design"),
        ("commands", lambda family: "other commands"),
        ("refine_sources", lambda: "another refinement"),
        ("version_of", lambda tool: "yosys 2"),
    ],
    ids=lambda pair: pair[0],
)
def test_it_is_synthesized_again_when_what_it_is_made_of_changes(
    made: tuple[Any, list[SystemConfig]], monkeypatch: pytest.MonkeyPatch, changed: tuple[str, Any]
) -> None:
    area, machines = made
    area.netlist_of(PRESETS["tiny"], "ecp5")
    monkeypatch.setattr(area, *changed)
    assert area.netlist_of(PRESETS["tiny"], "ecp5").read_text() == "netlist 2"
    assert len(machines) == 2
