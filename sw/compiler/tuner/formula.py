"""Cycles by a formula, for operators whose tiles are not walked through the cost model."""

from __future__ import annotations

# Cycles per row in addition to its words.
ROW_CYCLES = 4
# Cycles per tile between instructions that wait for each other.
TILE_CYCLES = 30


def overlapped(compute: float, loads: float, first: float, ahead: bool) -> float:
    """Cycles of ``compute`` and ``loads``: if loads run ``ahead``, the larger of the two plus the
    ``first`` load, else their sum."""
    return max(compute, loads) + first if ahead else compute + loads
