"""What a machine takes of a chip, and its clock, placed and routed: `routed`."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from .chips import Chip
from .floorplan import FloorPlan
from .flows import FLOWS
from .tools import Call, run, tool
from .usage import PlacedDesign, placed

_REPORT, _PLACED = "report.json", "placed.json"


@dataclass(frozen=True)
class RoutedMachine:
    """What a machine takes and how fast it is, and where its parts are."""

    result: PlacedDesign
    plan: FloorPlan


def routed(
    netlist: Path, chip: Chip, *, grade: int = 6, seed: int = 1, wanted_mhz: float | None = None
) -> RoutedMachine:
    """What a machine takes and how fast it is by itself, without pins, placed and routed from the
    ``netlist`` that `synthesized_area` writes; ``chip`` must have ``nextpnr`` options.

    ``grade`` is the speed grade of the chip. Placement starts from ``seed``: the same machine gives
    the same result. ``wanted_mhz`` is what is asked of place and route, by default the clock of the
    chip; a machine that is slower is no error. Takes minutes. Raises `MissingExtra` without
    nextpnr, and `ToolchainError` if there is no room.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "netlist.json").write_bytes(netlist.read_bytes())
        options = f"--json netlist.json --out-of-context --seed {seed} --quiet"
        results = f"--report {_REPORT} --write {_PLACED}"
        wanted = f"--freq {wanted_mhz or chip.clock_mhz:g} --timing-allow-fail --speed {grade}"
        parts = (chip.nextpnr, options, results, wanted, FLOWS[chip.family].placer)
        arguments = tuple(" ".join(parts).split())
        run(Call(tool("NEXTPNR_ECP5"), arguments), folder)
        plan = FloorPlan.load(folder / _PLACED, folder / _REPORT)
        return RoutedMachine(placed(folder / _REPORT, 0), plan)
