"""Steps of a schedule, with their repetitions: `RepeatedSteps`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

Step = TypeVar("Step")


class RepeatedSteps(Generic[Step]):
    """Iterates over the steps of a schedule: ``made(number)`` for each of ``numbers``.

    A step and its predecessors determine the tasks that it adds. While the steps repeat after one
    of ``periods``, a walk whose state repeats too may advance ``at``, the number of steps taken, by
    several periods.
    """

    def __init__(
        self, numbers: npt.NDArray[Any], made: Callable[[int], Step], periods: Sequence[int]
    ) -> None:
        self.at = 0
        self._numbers: list[int] = numbers.tolist()
        self._made = cache(made)
        # For each period, the steps that differ from those one period earlier, and the end.
        self._breaks: dict[int, list[int]] = {}
        for period in sorted({period for period in periods if 3 * period <= len(numbers)}):
            differ = np.flatnonzero(numbers[period:] != numbers[:-period]) + period
            self._breaks[period] = [*differ.tolist(), len(numbers)]

    def __iter__(self) -> Iterator[Step]:
        while self.at < len(self._numbers):
            self.at += 1
            yield self._made(self._numbers[self.at - 1])

    @property
    def periods(self) -> Sequence[int]:
        """The periods that may repeat, in ascending order."""
        return list(self._breaks)

    def repetitions(self, period: int) -> int:
        """How often the latest period follows again. 0 within a period, and unless the latest
        period equals its predecessor.
        """
        if self.at % period or self.at < 2 * period:
            return 0
        breaks = self._breaks[period]
        end = breaks[bisect_left(breaks, self.at - period)]
        return max(end - self.at, 0) // period
