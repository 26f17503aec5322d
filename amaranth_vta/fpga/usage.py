"""Resource usage and frequency of a design, from the tools' reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path

from amaranth_vta.errors import VtaError


class FitError(VtaError, ValueError):
    """A design does not fit its chip, or does not reach its clock; the message says by how much."""


@dataclass(frozen=True)
class Usage:
    """Cells of a design: LUTs (including those used as memories and carries), flip-flops,
    multipliers and block RAMs."""

    luts: int
    ffs: int
    dsps: int
    brams: int


# By cell type of ECP5, iCE40 and Gowin: the field of `Usage` that counts it, and its weight. On an
# ECP5, a memory of 16 words of 4 bits takes four LUTs plus two for its write port; on Gowin chips,
# a whole tile of eight LUTs. Two small Gowin multipliers share the place of one of 18 x 18 bits.
_CELLS: dict[str, tuple[str, float]] = {
    "LUT4": ("luts", 1),
    "CCU2C": ("luts", 2),
    "TRELLIS_DPR16X4": ("luts", 6),
    "TRELLIS_FF": ("ffs", 1),
    "MULT18X18D": ("dsps", 1),
    "DP16KD": ("brams", 1),
    "SB_LUT4": ("luts", 1),
    "SB_MAC16": ("dsps", 1),
    "SB_RAM40_4K": ("brams", 1),
    "LUT1": ("luts", 1),
    "LUT2": ("luts", 1),
    "LUT3": ("luts", 1),
    "ALU": ("luts", 1),
    "RAM16SDP4": ("luts", 8),
    "MULT9X9": ("dsps", 0.5),
    "MULT18X18": ("dsps", 1),
    "MULT36X36": ("dsps", 4),
    "SPX9": ("brams", 1),
    "SDPX9B": ("brams", 1),
    "DPX9B": ("brams", 1),
}
# iCE40 and Gowin have a flip-flop type for each kind of enable and reset, with these prefixes.
_FLIP_FLOPS = ("SB_DFF", "DFF")
# The same for nextpnr's site types, after place and route: Gowin's LUT sites also count other cells
# in them.
_SITES: dict[str, tuple[str, float]] = {
    "TRELLIS_COMB": ("luts", 1),
    "TRELLIS_FF": ("ffs", 1),
    "MULT18X18D": ("dsps", 1),
    "DP16KD": ("brams", 1),
    "ICESTORM_LC": ("luts", 1),
    "ICESTORM_DSP": ("dsps", 1),
    "ICESTORM_RAM": ("brams", 1),
    "LUT4": ("luts", 1),
    "DFF": ("ffs", 1),
    "MULT9X9": ("dsps", 0.5),
    "MULT18X18": ("dsps", 1),
    "MULT36X36": ("dsps", 4),
    "BSRAM": ("brams", 1),
}
_NAMES = {"luts": "LUTs", "ffs": "flip-flops", "dsps": "multipliers", "brams": "block RAMs"}


def synthesized(cells: Mapping[str, int]) -> Usage:
    """The usage of a design, given Yosys' counts of cells by type."""
    counts = dict.fromkeys(_NAMES, 0.0)
    for cell, count in cells.items():
        kind, weight = _CELLS.get(cell, ("ffs", 1 if cell.startswith(_FLIP_FLOPS) else 0))
        counts[kind] += weight * count
    return _rounded_up(counts)


def check_fit(usage: Usage, capacity: Mapping[str, int], what: str, where: str) -> None:
    """Raise `FitError`, with resource and excess, if ``usage`` exceeds ``capacity``."""
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
    """Parses nextpnr's ``--report``; ``ffs`` is used if the report does not count flip-flops."""
    values = json.loads(report.read_text(encoding="utf-8"))
    counts = dict.fromkeys(_NAMES, 0.0)
    for site, count in values["utilization"].items():
        kind, weight = _SITES.get(site, ("luts", 0))
        counts[kind] += weight * count["used"]
    counts["ffs"] = counts["ffs"] or ffs
    # A clock that drives no register has no path, and so no frequency.
    reached = [clock["achieved"] for clock in values["fmax"].values()]
    return PlacedDesign(_rounded_up(counts), min(reached, default=float("inf")))


def _rounded_up(counts: Mapping[str, float]) -> Usage:
    return Usage(**{kind: ceil(count) for kind, count in counts.items()})
