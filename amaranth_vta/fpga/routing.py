"""Area and clock of a machine, placed and routed: `routed`."""

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
# The ports that get pins. No package has as many as a machine has ports; and out of context, where
# ports need no pins, nextpnr leaves the clock to ordinary wires, of which an array of 16×8 has none
# to spare.
_PINS = ("clk", "rst")


@dataclass(frozen=True)
class RoutedMachine:
    """Area, clock and floor plan of a placed and routed machine."""

    result: PlacedDesign
    plan: FloorPlan


def routed(
    netlist: Path, chip: Chip, *, grade: int = 6, seed: int = 1, wanted_mhz: float | None = None
) -> RoutedMachine:
    """Area and clock of a machine by itself, placed and routed from the ``netlist`` that
    `synthesized_area` writes; ``chip`` must have ``nextpnr`` options. Its buses are not connected,
    and paths from and to them do not count.

    ``grade`` is the speed grade of the chip. Placement starts from ``seed``: the same machine has
    the same result. ``wanted_mhz`` is the target clock, by default the chip's; a slower machine is
    no error. Takes minutes. Raises `MissingExtra` without nextpnr, and `ToolchainError` if the
    machine does not fit.
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
