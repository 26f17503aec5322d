"""The Pareto front, and the effect of each parameter on the objectives."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean, median
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)
Objectives = tuple[float, ...]


def front(found: Mapping[Name, Objectives]) -> list[Name]:
    """The Pareto front: all points that no other point dominates, sorted by the first objective."""
    best: list[Name] = []
    # In lexicographic order, a dominated point always follows one of its dominators.
    for name, objectives in sorted(found.items(), key=lambda item: item[1]):
        if not any(_beats(found[other], objectives) for other in best):
            best.append(name)
    return best


def _beats(first: Objectives, second: Objectives) -> bool:
    return first != second and all(a <= b for a, b in zip(first, second, strict=True))


@dataclass(frozen=True)
class Effect:
    """The effect of one parameter value on an objective: the number of machines with the value,
    their best and their median.
    """

    value: int
    machines: int
    best: float
    median: float


@dataclass(frozen=True)
class Sensitivity:
    """The effect of a parameter on an objective: the ``share`` of the variance of the objective's
    logarithm that it explains, from 0 to 1, and the effect of each value.
    """

    parameter: str
    objective: str
    share: float
    effects: tuple[Effect, ...]


def sensitivities(
    parameters: Mapping[str, Sequence[int]],
    names: Sequence[str],
    found: Mapping[tuple[int, ...], Objectives],
) -> list[Sensitivity]:
    """The sensitivity of each objective to each parameter that has several values in ``found``."""
    results = []
    for place, key in enumerate(parameters):
        for number, name in enumerate(names):
            groups: dict[int, list[float]] = {}
            for values, objectives in found.items():
                groups.setdefault(values[place], []).append(objectives[number])
            if len(groups) > 1:
                effects = tuple(
                    Effect(value, len(group), min(group), median(group))
                    for value, group in sorted(groups.items())
                )
                results.append(Sensitivity(key, name, _explained(groups), effects))
    return results


def _explained(groups: Mapping[int, Sequence[float]]) -> float:
    """The variance between groups as a fraction of the total variance, both of logarithms."""
    logs = [[log(max(value, 1e-9)) for value in group] for group in groups.values()]
    everything = [value for group in logs for value in group]
    mean = fmean(everything)
    total = sum((value - mean) ** 2 for value in everything)
    between = sum(len(group) * (fmean(group) - mean) ** 2 for group in logs)
    return between / total if total else 0.0
