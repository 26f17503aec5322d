"""Choosing tile sizes: what the default knobs of all operators are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from amaranth_vta.sw.compiler.build import BuildError, Function

from .cost_model import Estimate

Knobs = TypeVar("Knobs")
# Knobs that a formula finds to fit and the compiler does not: only a few can be.
_ATTEMPTS = 20
# Of the best by a rough estimate, so many are estimated.
_ESTIMATES = 12
# Cycles from the request of a row to its data, and between instructions that wait for each other,
# for operators without a model.
ROW_CYCLES = 4
TILE_CYCLES = 30


class NoScheduleFits(ValueError):
    """An operator for which the scratchpads of a configuration are too small."""


def even_tiles(extent: int) -> list[int]:
    """Tile sizes that cut ``extent`` into parts as equal as can be, the largest first."""
    return sorted({-(-extent // parts) for parts in range(1, extent + 1)}, reverse=True)


def divisors(extent: int) -> list[int]:
    """Tile sizes that leave no rest, the largest first. What is accumulated in a rest would be
    loaded by a loop nest of its own, which nothing overlaps."""
    return [tile for tile in range(extent, 0, -1) if extent % tile == 0]


def parts(extent: int, tile: int) -> int:
    return -(-extent // tile)


def cut(extent: int, tile: int) -> list[int]:
    """Sizes of the parts."""
    return [min(tile, extent - begin) for begin in range(0, extent, tile)]


def estimate(compute: float, loads: float, first: float, ahead: bool) -> float:
    """Cycles of a function that computes and loads for so long: one beside the other if it loads
    ``ahead``, when only the ``first`` load is waited for. For operators without a model."""
    return max(compute, loads) + first if ahead else compute + loads


@dataclass(frozen=True)
class Choice(Generic[Knobs]):
    """What was considered for an operator: ``estimates`` of some knobs, the best first, and the
    ``others`` that fit, with rough estimates of their cycles. As text it is a table."""

    estimates: list[tuple[Estimate, Knobs]]
    others: list[tuple[float, Knobs]]

    @property
    def ranked(self) -> list[tuple[float, Knobs]]:
        """All of them with their ranks, those with an estimate first."""
        ordered = [knobs for _, knobs in (*self.estimates, *self.others)]
        return [(float(rank), knobs) for rank, knobs in enumerate(ordered)]

    def __str__(self) -> str:
        columns = ("cycles", "gemm", "alu", "bus", "fill", "waits", "drain")
        lines = ["".join(f"{name:>10}" for name in columns) + "  limit  knobs"]
        for estimate, knobs in self.estimates:
            numbers = "".join(f"{getattr(estimate, name):>10,.0f}" for name in columns)
            lines.append(f"{numbers}  {estimate.limit:5}  {_described(knobs)}")
        if self.others:
            best = min(cycles for cycles, _ in self.others)
            lines.append(f"{len(self.others):,} others fit, the best of them about {best:,.0f}")
        return "\n".join(lines)


def _described(knobs: Any) -> str:
    """Numbers by name, and the names of the flags that are set."""
    values = [(item.name, getattr(knobs, item.name)) for item in fields(knobs)]
    return " ".join(
        name if value is True else f"{name}={value}" for name, value in values if value is not False
    )


def best_of(
    candidates: Iterable[tuple[float, Knobs]],
    estimated: Callable[[Knobs], Estimate],
    variants: Callable[[Knobs, Estimate], Iterable[Knobs]] = lambda *_: (),
) -> Choice[Knobs]:
    """Estimates of the best of ``candidates``, which have rough ones, and of ``variants`` of each
    as long as they become better."""
    ordered = sorted(candidates, key=lambda candidate: candidate[0])
    estimates: list[tuple[Estimate, Knobs]] = []
    for _, knobs in ordered[:_ESTIMATES]:
        estimate = estimated(knobs)
        estimates.append((estimate, knobs))
        for variant in variants(knobs, estimate):
            latest = estimated(variant)
            estimates.append((latest, variant))
            if latest.cycles >= estimate.cycles:
                break
            estimate = latest
    estimates.sort(key=lambda item: item[0].cycles)
    return Choice(estimates, ordered[_ESTIMATES:])


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
