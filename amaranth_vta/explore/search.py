"""Search strategies over machines: exhaustive, random, or guided by Optuna.

A search returns a batch of combinations and receives the results of all of them before the next
batch. So a seed determines the machines for any number of workers, and a killed run can be replayed
from its results.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from amaranth_vta.extras import explain_missing_extras

from .spec import Spec

Values = tuple[int, ...]
# Maximum number of Optuna's suggestions for a batch; if none of them is new, the search ends.
_FRUITLESS = 500


class Search(Protocol):
    """Proposes combinations of parameter values."""

    def ask(self, count: int) -> list[Values]:
        """At most ``count`` new combinations; empty at the end."""

    def tell(self, found: Mapping[Values, Sequence[float] | None]) -> None:
        """Takes the objectives of all combinations of the last batch, None if a combination has
        none.
        """


def search_of(spec: Spec) -> Search:
    """The search strategy of ``spec``. Raises `MissingExtra` for Optuna if it is not installed."""
    lists = list(spec.parameters.values())
    # With a budget for all combinations there is nothing to search.
    if spec.search.method == "grid" or spec.combinations <= spec.machines:
        return _Listed(itertools.product(*lists))
    if spec.search.method == "random":
        return _Listed(_at_random(lists, spec.combinations, spec.search.seed))
    return _Optuna(lists, spec)


class _Listed:
    """A search whose combinations do not depend on results."""

    def __init__(self, combinations: Iterator[Values]) -> None:
        self._combinations = combinations

    def ask(self, count: int) -> list[Values]:
        return list(itertools.islice(self._combinations, count))

    def tell(self, found: Mapping[Values, Sequence[float] | None]) -> None:
        pass


def _at_random(lists: list[Values], combinations: int, seed: int) -> Iterator[Values]:
    """Each combination once, in random order, generated lazily: there may be very many."""
    dice, drawn = random.Random(seed), set[int]()
    while len(drawn) < combinations:
        number = dice.randrange(combinations)
        if number in drawn:
            continue
        drawn.add(number)
        values = []
        for choices in lists:
            number, index = divmod(number, len(choices))
            values.append(choices[index])
        yield tuple(values)


class _Optuna:
    """Optuna's tree-structured Parzen estimator over the indices of the parameters' values."""

    def __init__(self, lists: list[Values], spec: Spec) -> None:
        with explain_missing_extras():
            import optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._lists = lists
        self._seen: dict[Values, Sequence[float] | None] = {}
        self._asked: list[tuple[Any, Values]] = []
        self._failed = optuna.trial.TrialState.FAIL
        self._study = optuna.create_study(
            directions=["minimize"] * len(spec.objectives),
            sampler=optuna.samplers.TPESampler(
                seed=spec.search.seed, constant_liar=True, n_startup_trials=spec.search.batch
            ),
        )

    def ask(self, count: int) -> list[Values]:
        fresh: list[Values] = []
        for _ in range(_FRUITLESS):
            if len(fresh) == count:
                break
            trial = self._study.ask()
            values = tuple(
                choices[trial.suggest_int(str(number), 0, len(choices) - 1)]
                for number, choices in enumerate(self._lists)
            )
            if values in self._seen:
                self._tell(trial, self._seen[values])
            else:
                self._asked.append((trial, values))
                if values not in fresh:
                    fresh.append(values)
        return fresh

    def tell(self, found: Mapping[Values, Sequence[float] | None]) -> None:
        self._seen |= found
        for trial, values in self._asked:
            self._tell(trial, found[values])
        self._asked = []

    def _tell(self, trial: Any, objectives: Sequence[float] | None) -> None:
        if objectives is None:
            self._study.tell(trial, state=self._failed)
        else:
            self._study.tell(trial, list(objectives))
