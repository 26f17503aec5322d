"""Ranks the knobs of an operator by estimated cycles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from math import inf
from typing import Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt

from .cost_model import Estimate

Array = npt.NDArray[Any]
Knobs = TypeVar("Knobs")
# Number of candidates, best by rough estimate first, that are walked through the cost model.
_ESTIMATES = 12
# Variants and neighbours are tried for knobs with which GEMM waits in more than this fraction of
# the cycles.
_WAITS_WORTH_VARIANTS = 0.007
# The same for variants in which GEMM begins earlier, by the cycles before its first product.
_FILL_WORTH_VARIANTS = 0.05
# Variants are tried for knobs whose cycles are at most this ratio of the best so far; the second
# ratio applies where GEMM waits in more than `_MANY_WAITS` of the cycles, which variants reduce.
_CYCLES_WORTH_VARIANTS = 1.02, 1.06
_MANY_WAITS = 0.2
# Maximum rows of the printed table for knobs without estimates.
_ROWS = 12


class Candidates(Sequence[tuple[float, Knobs]]):
    """Knobs with rough estimates of their cycles, best first, in a stable order.

    ``fields`` hold one item per candidate; since there can be thousands, objects of class ``made``
    are created lazily.
    """

    def __init__(
        self,
        cycles: Array,
        fields: Mapping[str, Array],
        made: Callable[..., Knobs],
        order: Array | None = None,
    ) -> None:
        self._order = np.argsort(cycles, kind="stable") if order is None else order
        self._cycles, self._fields, self._made = cycles, fields, made

    def varied(self, alike: Sequence[str], most: int) -> Candidates[Knobs]:
        """Reorder for diversity: of the candidates that agree in the fields ``alike``, only the
        best ``most`` stay in front. A rough estimate distinguishes these least.
        """
        kind = np.zeros(len(self), np.int64)
        for name in alike:
            values = self._fields[name][self._order]
            kind = kind * (int(values.max(initial=0)) + 1) + values
        by_kind = np.argsort(kind, kind="stable")
        begins = np.searchsorted(kind[by_kind], kind[by_kind])
        place = np.empty_like(by_kind)
        place[by_kind] = np.arange(len(by_kind)) - begins
        order = self._order[np.argsort(place >= most, kind="stable")]
        return Candidates(self._cycles, self._fields, self._made, order)

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> tuple[float, Knobs]: ...
    @overload
    def __getitem__(self, index: slice) -> Candidates[Knobs]: ...
    def __getitem__(self, index: int | slice) -> tuple[float, Knobs] | Candidates[Knobs]:
        if isinstance(index, slice):
            return Candidates(self._cycles, self._fields, self._made, self._order[index])
        item = self._order[index]
        fields = {name: values[item].tolist() for name, values in self._fields.items()}
        return float(self._cycles[item]), self._made(**fields)


@dataclass(frozen=True)
class Choice(Generic[Knobs]):
    """The knobs considered for an operator; prints as a table. Each list is sorted, best first.

    ``estimates`` are the knobs that were the best so far when walked through the cost model.
    ``passed`` are the other knobs that were walked; their cycles are approximate where the walk was
    pruned. ``others`` fit too, with rough estimates only.
    """

    estimates: Sequence[tuple[Estimate, Knobs]]
    passed: Sequence[tuple[float, Knobs]]
    others: Sequence[tuple[float, Knobs]]

    @property
    def ranked(self) -> Iterator[Knobs]:
        """All knobs, the best first."""
        return (knobs for _, knobs in chain(self.estimates, self.passed, self.others))

    @property
    def cycles(self) -> float:
        """The estimated cycles of the best; infinite if none fit."""
        known = chain(((e.cycles, k) for e, k in self.estimates), self.passed, self.others)
        return next((cycles for cycles, _ in known), inf)

    @property
    def best(self) -> Knobs:
        """The best knobs; raises `StopIteration` if none fit."""
        return next(self.ranked)

    def __str__(self) -> str:
        if self.estimates:
            lines, others = self._rows_of_estimates(), self.others
        else:
            lines, others = [f"{'cycles':>10}  knobs"], self.others[_ROWS:]
            for cycles, knobs in self.others[:_ROWS]:
                lines.append(f"{cycles:>10,.0f}  {_described(knobs)}")
        if others:
            lines.append(f"{len(others):,} others fit, the best of them about {others[0][0]:,.0f}")
        return "\n".join(lines)

    def _rows_of_estimates(self) -> list[str]:
        columns = ("cycles", "gemm", "alu", "bus", "fill", "waits", "drain")
        lines = ["".join(f"{name:>10}" for name in columns) + "  limit  knobs"]
        for estimate, knobs in self.estimates:
            numbers = "".join(f"{getattr(estimate, name):>10,.0f}" for name in columns)
            lines.append(f"{numbers}  {estimate.limit:5}  {_described(knobs)}")
        width = len(columns) * 10 + len("  limit")
        for cycles, knobs in self.passed:
            about = f"about {cycles:,.0f}".ljust(width)
            lines.append(f"{about}  {_described(knobs)}")
        return lines


def _described(knobs: Any) -> str:
    """Knobs as text: numbers by name, and the names of the flags that are set."""
    values = [(item.name, getattr(knobs, item.name)) for item in fields(knobs)]
    return " ".join(
        name if value is True else f"{name}={value}" for name, value in values if value is not False
    )


def best_of(
    candidates: Sequence[tuple[float, Knobs]],
    walked: Callable[[Knobs, float], Estimate],
    variants: Callable[[Knobs], Iterable[Knobs]] = lambda _: (),
    neighbours: Callable[[Knobs], Iterable[Knobs]] = lambda _: (),
    begun_earlier: Callable[[Knobs], Iterable[Knobs]] = lambda _: (),
    walks: int = _ESTIMATES,
) -> Choice[Knobs]:
    """Walk the first ``walks`` of ``candidates``, which are ranked by rough estimates, through the
    cost model, ``variants`` of those in which GEMM waits, and those that ``begun_earlier`` returns
    where it begins late; then, by hill climbing, ``neighbours`` of the best so far.

    ``walked(knobs, limit)`` returns an estimate, which may be approximate beyond ``limit`` cycles,
    the cost of the best so far.
    """
    estimates: list[tuple[Estimate, Knobs]] = []
    passed: list[tuple[float, Knobs]] = []
    # Different candidates can have the same variants.
    known: dict[Knobs, Estimate] = {}

    def walk(knobs: Knobs) -> Estimate:
        if knobs in known:
            return known[knobs]
        best = estimates[-1][0].cost if estimates else inf
        estimate = known[knobs] = walked(knobs, best)
        if estimate.cost < best:
            estimates.append((estimate, knobs))
        else:
            passed.append((estimate.cycles, knobs))
        return estimate

    # Whether neighbours are tried even if GEMM does not wait.
    climbs, least = False, inf
    for _, knobs in candidates[:walks]:
        estimate = walk(knobs)
        least = min(least, estimate.cycles)
        waits = estimate.waits / estimate.cycles
        if estimate.cycles > _CYCLES_WORTH_VARIANTS[waits > _MANY_WAITS] * least:
            continue
        if waits > _WAITS_WORTH_VARIANTS:
            for variant in variants(knobs):
                walk(variant)
        if estimate.fill > _FILL_WORTH_VARIANTS * estimate.cycles:
            for variant in begun_earlier(knobs):
                walk(variant)
                climbs |= estimates[-1][1] is variant
    climbed: Knobs | None = None
    while estimates and estimates[-1][1] != climbed:
        estimate, climbed = estimates[-1]
        if climbs or estimate.waits > _WAITS_WORTH_VARIANTS * estimate.cycles:
            for neighbour in neighbours(climbed):
                walk(neighbour)
    passed.sort(key=lambda item: item[0])
    return Choice(estimates[::-1], passed, candidates[walks:])
