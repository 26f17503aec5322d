"""Places and routes a machine for its area and clock: `routed`."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .chips import Chip
from .floorplan import FloorPlan
from .flows import FLOWS
from .tools import Call, run, tool
from .usage import PlacedDesign, placed

_NETLIST, _REPORT, _PLACED = "netlist.json", "report.json", "placed.json"
# The ports that get pins. No package has enough pins for all ports of a machine. Out of context,
# where ports need no pins, nextpnr routes the clock on ordinary wires, and an array of 16×8 has
# none to spare.
_PINS = ("clk", "rst")


@dataclass(frozen=True)
class RoutedMachine:
    """Area, clock and floor plan of a placed and routed machine."""

    result: PlacedDesign
    plan: FloorPlan


def routed(
    netlist: Path, chip: Chip, *, grade: int = 6, seed: int = 1, wanted_mhz: float | None = None
) -> RoutedMachine:
    """Places and routes a machine by itself, from a ``netlist`` that `synthesized_area` wrote;
    ``chip`` must have ``nextpnr`` options. The machine's buses are left unconnected, so that paths
    to and from them do not count.

    ``grade`` is the speed grade of the chip. Placement starts from ``seed``, so that results are
    reproducible. ``wanted_mhz`` is the target clock, by default the chip's; a slower machine is no
    error. Takes minutes. Raises `MissingExtra` without nextpnr, and `ToolchainError` if the machine
    does not fit.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        design = json.loads(netlist.read_text(encoding="utf-8"))
        machine = design["modules"]["vta"]
        machine["ports"] = {name: port for name, port in machine["ports"].items() if name in _PINS}
        (folder / _NETLIST).write_text(json.dumps(design), encoding="utf-8")
        options = f"--json {_NETLIST} --lpf-allow-unconstrained --seed {seed} --quiet"
        results = f"--report {_REPORT} --write {_PLACED}"
        wanted = f"--freq {wanted_mhz or chip.clock_mhz:g} --timing-allow-fail --speed {grade}"
        parts = (chip.nextpnr, options, results, wanted, FLOWS[chip.family].placer)
        arguments = tuple(" ".join(parts).split())
        run(Call(tool("NEXTPNR_ECP5"), arguments), folder)
        plan = FloorPlan.load(folder / _PLACED, folder / _REPORT)
        return RoutedMachine(placed(folder / _REPORT, 0), plan)
