"""Choosing tile sizes: what the default knobs of all operators are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from amaranth_vta.sw.compiler.build import BuildError, Function

Knobs = TypeVar("Knobs")
# Knobs that a formula finds to fit and the compiler does not: only a few can be.
_ATTEMPTS = 20
# Cycles from the request of a row to its data, and between instructions that wait for each other.
ROW_CYCLES = 4
TILE_CYCLES = 30


class NoScheduleFits(ValueError):
    """An operator for which the scratchpads of a configuration are too small."""


def even_tiles(extent: int) -> list[int]:
    """Tile sizes that cut ``extent`` into parts as equal as can be, the largest first."""
    return sorted({-(-extent // parts) for parts in range(1, extent + 1)}, reverse=True)


def parts(extent: int, tile: int) -> int:
    return -(-extent // tile)


def estimate(compute: float, loads: float, first: float, ahead: bool) -> float:
    """Cycles of a function that computes and loads for so long: one beside the other if it loads
    ``ahead``, when only the ``first`` load is waited for."""
    return max(compute, loads) + first if ahead else compute + loads


def build_best(
    name: str,
    candidates: Iterable[tuple[float, Knobs]],
    build: Callable[[Knobs], Function],
) -> Function:
    """The function with the cheapest knobs that fit.

    ``candidates`` are estimates of cycles with the knobs they are for. Raises `NoScheduleFits` if
    none fits.
    """
    reason: Exception | None = None
    ordered = sorted(candidates, key=lambda candidate: candidate[0])
    for _, knobs in ordered[:_ATTEMPTS]:
        try:
            return build(knobs)
        except BuildError as error:
            reason = error
    if reason is None:
        raise NoScheduleFits(f"{name}: the scratchpads are too small for a tile of one element")
    raise NoScheduleFits(f"{name}: no schedule fits: {reason}") from reason
