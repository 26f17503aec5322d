"""Ranking the knobs of an operator by estimates of their cycles."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from .cost_model import Estimate

Knobs = TypeVar("Knobs")
# Of the best by a rough estimate, so many are walked through the cost model.
_ESTIMATES = 12
# Rows of a table of knobs without estimates.
_ROWS = 12


@dataclass(frozen=True)
class Choice(Generic[Knobs]):
    """What was considered for an operator: ``estimates`` of some knobs, the best first, and the
    ``others`` that fit, with rough estimates of their cycles, the best first. As text it is a
    table."""

    estimates: list[tuple[Estimate, Knobs]]
    others: list[tuple[float, Knobs]]

    @classmethod
    def by_formula(cls, candidates: Iterable[tuple[float, Knobs]]) -> Choice[Knobs]:
        """Of knobs with rough estimates only."""
        return cls([], sorted(candidates, key=lambda candidate: candidate[0]))

    @property
    def ranked(self) -> list[Knobs]:
        """All knobs, those with an estimate first."""
        return [knobs for _, knobs in (*self.estimates, *self.others)]

    def __str__(self) -> str:
        if self.estimates:
            lines = self._rows_of_estimates()
            rest = self.others
        else:
            shown, rest = self.others[:_ROWS], self.others[_ROWS:]
            lines = [f"{'cycles':>10}  knobs"]
            lines += [f"{cycles:>10,.0f}  {_described(knobs)}" for cycles, knobs in shown]
        if rest:
            lines.append(f"{len(rest):,} others fit, the best of them about {rest[0][0]:,.0f}")
        return "\n".join(lines)

    def _rows_of_estimates(self) -> list[str]:
        columns = ("cycles", "gemm", "alu", "bus", "fill", "waits", "drain")
        lines = ["".join(f"{name:>10}" for name in columns) + "  limit  knobs"]
        for estimate, knobs in self.estimates:
            numbers = "".join(f"{getattr(estimate, name):>10,.0f}" for name in columns)
            lines.append(f"{numbers}  {estimate.limit:5}  {_described(knobs)}")
        return lines


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
