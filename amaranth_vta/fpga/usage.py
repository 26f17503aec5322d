"""Resources and frequency of a design on a chip, as the tools report them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


class FitError(ValueError):
    """A design does not fit its chip, or is slower than its clock; the message says by how much."""


@dataclass(frozen=True)
class Usage:
    """Cells of a design: LUTs (including those used as memories and carries), flip-flops,
    multipliers and block RAMs."""

    luts: int
    ffs: int
    dsps: int
    brams: int


# By cell of the libraries of ECP5 and iCE40: the field of `Usage` that counts it, and as how many.
# A memory of 16 words of 4 bits takes four LUTs, and two for its write port.
_CELLS: dict[str, tuple[str, int]] = {
    "LUT4": ("luts", 1),
    "CCU2C": ("luts", 2),
    "TRELLIS_DPR16X4": ("luts", 6),
    "TRELLIS_FF": ("ffs", 1),
    "MULT18X18D": ("dsps", 1),
    "DP16KD": ("brams", 1),
    "SB_LUT4": ("luts", 1),
    "SB_MAC16": ("dsps", 1),
    "SB_RAM40_4K": ("brams", 1),
}
_ICE40_FF = "SB_DFF"
# The same for the sites of nextpnr, after place and route.
_SITES = {
    "TRELLIS_COMB": "luts",
    "TRELLIS_FF": "ffs",
    "MULT18X18D": "dsps",
    "DP16KD": "brams",
    "ICESTORM_LC": "luts",
    "ICESTORM_DSP": "dsps",
    "ICESTORM_RAM": "brams",
}
_NAMES = {"luts": "LUTs", "ffs": "flip-flops", "dsps": "multipliers", "brams": "block RAMs"}


def synthesized(cells: Mapping[str, int]) -> Usage:
    """The usage, from the counts of cells by type that Yosys prints."""
    counts = dict.fromkeys(_NAMES, 0)
    for cell, count in cells.items():
        kind, weight = _CELLS.get(cell, ("ffs", 1 if cell.startswith(_ICE40_FF) else 0))
        counts[kind] += weight * count
    return Usage(**counts)


def check_fit(usage: Usage, capacity: Mapping[str, int], what: str, where: str) -> None:
    """Raises `FitError`, which says what is too large and by how much, if ``usage`` exceeds
    ``capacity``."""
    over = [
        f"{used:,} {_NAMES[kind]} of {capacity[kind]:,} ({used - capacity[kind]:,} too many)"
        for kind, used in asdict(usage).items()
        if used > capacity[kind]
    ]
    if over:
        raise FitError(f"{what} does not fit {where}: it takes {' and '.join(over)}")


@dataclass(frozen=True)
class PlacedDesign:
    """Usage after place and route, and the frequency that the slowest path allows."""

    usage: Usage
    fmax_mhz: float


def placed(report: Path, ffs: int) -> PlacedDesign:
    """The result in nextpnr's ``--report``; ``ffs`` is used if that does not count flip-flops."""
    values = json.loads(report.read_text(encoding="utf-8"))
    counts = {**dict.fromkeys(_NAMES, 0), "ffs": ffs}
    for site, count in values["utilization"].items():
        if site in _SITES:
            counts[_SITES[site]] = count["used"]
    # A clock that drives no register has no path, and so no frequency.
    reached = [clock["achieved"] for clock in values["fmax"].values()]
    return PlacedDesign(Usage(**counts), min(reached, default=float("inf")))
