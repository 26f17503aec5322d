"""Floor plans show the parts of the machine and the longest path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from amaranth_vta.fpga.floorplan import FloorPlan, drawn


def _load(tmp_path: Path, sites: dict[str, str], paths: list[Any]) -> FloorPlan:
    cells = {name: {"attributes": {"NEXTPNR_BEL": site}} for name, site in sites.items()}
    (tmp_path / "placed.json").write_text(json.dumps({"modules": {"top": {"cells": cells}}}))
    (tmp_path / "report.json").write_text(json.dumps({"critical_paths": paths}))
    return FloorPlan.load(tmp_path / "placed.json", tmp_path / "report.json")


@pytest.mark.parametrize(
    ("cell", "part"),
    [
        ("core.machine.fetch.words_TRELLIS_FF_Q", "fetch and queues"),
        ("system.machine.core.machine.queues.memory.0.3", "fetch and queues"),
        ("core.machine.wgt.bank0", "load and its scratchpads"),
        ("core.machine.compute.alu.lane_0_3.total_TRELLIS_FF_Q_4", "ALU"),
        ("core.machine.compute.loader.walker.left", "compute: micro-ops, loads"),
        ("core.machine.store.order.head", "store"),
        ("system.memory.controller.any_wait", "memory of the board"),
        ("system.link.crc", "link to the host"),
        ("system.machine.registers.copies.0", "registers, bus and the rest"),
    ],
)
def test_a_cell_belongs_to_the_part_that_its_name_says(
    tmp_path: Path, cell: str, part: str
) -> None:
    assert _load(tmp_path, {cell: "X3/Y4/SLICEB.LUT0"}, []).parts == {(3, 4): part}


def test_a_tile_has_the_part_with_the_most_cells(tmp_path: Path) -> None:
    sites = {"core.machine.store.a": "X1/Y1/A", "core.machine.fetch.a": "X1/Y1/B"}
    plan = _load(tmp_path, {**sites, "core.machine.fetch.b": "X1/Y1/C"}, [])
    assert plan.parts == {(1, 1): "fetch and queues"}
    assert plan.path is None


def test_the_longest_path_within_a_clock_is_drawn_through_its_tiles(tmp_path: Path) -> None:
    def path(begin: str, end: str, delay: float) -> dict[str, Any]:
        ends = {
            "from": {"cell": "a_TRELLIS_FF_Q", "loc": [0, 0]},
            "to": {"cell": "b", "loc": [4, 2]},
        }
        steps = [{"type": "logic", "delay": 1, **ends, "to": ends["from"]}]
        return {
            "from": begin,
            "to": end,
            "path": [*steps, {"type": "routing", "delay": delay, **ends}],
        }

    clocks = [path("posedge c", "posedge c", 2), path("posedge d", "posedge d", 3)]
    plan = _load(tmp_path, {"x": "X9/Y9/A"}, [*clocks, path("<async>", "posedge d", 9)])
    assert plan.path is not None
    assert (plan.path.begin, plan.path.end, plan.path.ns) == ("a", "b", 4)
    assert plan.path.places == ((0, 0), (4, 2))
    assert str(plan.path) == "1.0 + 3.0 ns, a -> b"
    drawing = ElementTree.fromstring(drawn(plan, "a <plan>"))
    assert [element.text for element in drawing.iter() if element.tag.endswith("title")] == [
        "a <plan>"
    ]
    lines = [element for element in drawing.iter() if element.tag.endswith("polyline")]
    assert {len(line.attrib["points"].split()) for line in lines} == {2}
