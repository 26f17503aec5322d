"""Cycles by a formula, for operators that have no model of their tiles."""

from __future__ import annotations

# From the request of a row to its data, beyond its words.
ROW_CYCLES = 4
# Between instructions of a tile that wait for each other.
TILE_CYCLES = 30


def overlapped(compute: float, loads: float, first: float, ahead: bool) -> float:
    """Cycles of ``compute`` and ``loads``: with loads ``ahead`` the longer of the two, after the
    ``first`` load, else their sum."""
    return max(compute, loads) + first if ahead else compute + loads
