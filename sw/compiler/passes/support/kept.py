"""Buffers that the first iteration of a loop fills for all its iterations.

A loop within that iteration may fill one part of the buffer in each of its iterations.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap

from amaranth_vta.sw.compiler.te.expr import Affine
from amaranth_vta.sw.compiler.te.schedule import Stage

from .rolling import Ranges, RollingBuffer, Written
from .stage_loops import Bounds


class KeptBuffer(RollingBuffer):
    """A buffer with one turn for each iteration of the loop at which the stage is computed."""

    def __init__(self, stage: Stage, iterations: int) -> None:
        super().__init__(stage, iterations)
        self.buffer.rolling = False
        # The region of each turn.
        self._regions: dict[int, Bounds] = {}

    def place(
        self, bounds: Bounds, iteration: Affine, inner: tuple[Affine, int], ranges: Ranges
    ) -> list[Written]:
        self._turn, self._period = inner
        self._origins = [begin for begin, _ in bounds]
        regions = dict(self._regions_of(bounds, ranges))
        if not iteration.terms and not iteration.const:
            self._regions |= regions
            self._extend(bounds)
            return [Written(bounds, self._turn, [0] * len(bounds))]
        for turn, region in regions.items():
            known = self._regions.get(turn)
            if known is None or not all(starmap(_same, zip(region, known, strict=True))):
                raise self._error("its iterations read different regions")
        return []

    def _regions_of(self, bounds: Bounds, ranges: Ranges) -> Iterator[tuple[int, Bounds]]:
        """The turns of the current part, each with its region."""
        var = next(iter(self._turn.terms), None)
        for number in range(1 if var is None else ranges[var][1] + 1):
            value = {} if var is None else {var: Affine({}, number)}
            region = [(begin.replace(value), extent) for begin, extent in bounds]
            yield self._turn.replace(value).const, region

    @property
    def _turns(self) -> int:
        return self._period


def _same(first: tuple[Affine, int], second: tuple[Affine, int]) -> bool:
    return first[1] == second[1] and first[0].same(second[0])
