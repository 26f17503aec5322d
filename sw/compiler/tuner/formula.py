"""Closed-form cycle estimates, for operators whose tiles are not walked through the cost model."""

from __future__ import annotations

# Overhead in cycles per row.
ROW_CYCLES = 4
# Overhead in cycles per tile, for instructions that wait for each other.
TILE_CYCLES = 30


def overlapped(compute: float, loads: float, first: float, ahead: bool) -> float:
    """Cycles of ``compute`` and ``loads``: their sum, or, if loads are prefetched (``ahead``), the
    larger of the two plus the ``first`` load.
    """
    return max(compute, loads) + first if ahead else compute + loads
