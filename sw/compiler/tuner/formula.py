"""Closed-form cycle estimates, for operators whose tiles are not walked through the cost model."""

from __future__ import annotations

from .cost_model import TOKEN_CYCLES

# Overhead in cycles per row.
ROW_CYCLES = 4
# Overhead in cycles per tile: an instruction waits for another module and that one for it.
TILE_CYCLES = 2 * TOKEN_CYCLES


def overlapped(compute: float, loads: float, first: float, ahead: bool) -> float:
    """Cycles of ``compute`` and ``loads``: their sum, or, if loads are prefetched (``ahead``), the
    larger of the two plus the ``first`` load.
    """
    return max(compute, loads) + first if ahead else compute + loads
