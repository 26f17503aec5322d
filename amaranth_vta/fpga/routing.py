"""The clock that a machine reaches on a chip, placed and routed: `routed_mhz`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from .chips import Chip
from .tools import Call, run, tool
from .usage import placed

_REPORT = "report.json"
# Placement starts from it: the same machine gives the same clock.
_SEED = 1


def routed_mhz(netlist: Path, chip: Chip) -> float:
    """The clock in MHz that a machine reaches by itself, without pins, placed and routed from the
    ``netlist`` that `synthesized_area` writes; ``chip`` must have ``nextpnr`` options.

    Takes minutes. Raises `MissingExtra` without nextpnr, and `ToolchainError` if there is no room.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "netlist.json").write_bytes(netlist.read_bytes())
        options = f"--json netlist.json --out-of-context --seed {_SEED} --report {_REPORT} --quiet"
        wanted = f"--freq {chip.clock_mhz:g} --timing-allow-fail"
        arguments = (*chip.nextpnr.split(), *options.split(), *wanted.split())
        run(Call(tool("NEXTPNR_ECP5"), arguments), folder)
        return placed(folder / _REPORT, 0).fmax_mhz
