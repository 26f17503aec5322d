"""Rolling buffers whose overlap of consecutive iterations is written twice.

Each iteration copies only elements that its predecessor has not copied. It writes the last of them
a second time, into the turn of the next iteration, so that each turn holds its whole region
contiguously. Loops between the iteration and the copy have a turn for each of their iterations.
"""

from __future__ import annotations

from math import prod

from amaranth_vta.sw.compiler.nest.ir import Stmt
from amaranth_vta.sw.compiler.te.expr import Affine
from amaranth_vta.sw.compiler.te.schedule import Stage

from .rolling import Ranges, RollingBuffer, Written
from .stage_loops import Bounds


class RewrittenBuffer(RollingBuffer):
    """A rolling buffer whose iterations carry copied elements; it can be filled ahead."""

    def __init__(self, stage: Stage, iterations: int) -> None:
        assert stage.rewritten is not None
        super().__init__(stage, iterations)
        self.buffer.ahead = stage.ahead
        self._overlap = stage.rewritten
        # The part placed last, the end of the region of its last iteration, and the end of the
        # region before it, None in the first part.
        self._part: Affine | None = None
        self._end: Affine | None = None
        self._before: Affine | None = None

    def _written(self, bounds: Bounds, iteration: Affine, ranges: Ranges) -> list[Written]:
        self._extend(bounds)
        if self._part is None or not iteration.same(self._part):
            self._part, self._before = iteration, self._end
        begin, extent = bounds[self._carried]
        end, var = begin.plus(Affine({}, extent)), next(iter(iteration.terms), None)
        count = 1 if var is None else ranges[var][1] + 1
        first = begin if var is None else begin.replace({var: Affine({})})
        step = 0 if var is None else begin.terms.get(var, 0)
        self._end = end if var is None else end.replace({var: Affine({}, count - 1)})
        last = iteration.const + count == self.iterations
        if self._before is not None and not self._before.same(
            first.plus(Affine({}, self._overlap))
        ):
            raise self._error(
                f"regions of consecutive iterations do not overlap by {self._overlap}"
            )
        if count > 1 and extent - step != self._overlap:
            raise self._error(f"regions of consecutive iterations overlap by {extent - step}")
        if count > 1 and (last or self._before is None):
            raise self._error("the first and the last iteration are not separate")
        known = 0 if self._before is None else self._overlap
        found = [self._copy(bounds, known, extent, self._turn, known)]
        if not last:
            if extent - known < self._overlap:
                raise self._error(f"an iteration writes only {extent - known} elements")
            later = self._turn.plus(Affine({}, self._period))
            found.append(self._copy(bounds, extent - self._overlap, extent, later, 0))
        return found

    def _copy(self, bounds: Bounds, begin: int, end: int, turn: Affine, at: int) -> Written:
        """Elements ``begin`` to ``end`` - 1 along the carried dimension, written from ``at`` on."""
        part, first = list(bounds), [0] * len(bounds)
        whole = bounds[self._carried][0]
        part[self._carried] = whole.plus(Affine({}, begin)), end - begin
        first[self._carried] = at
        return Written(part, turn, first)

    def _finished(self, body: Stmt) -> Stmt:
        """``body``; the shape of the buffer determines the number of carried scalars."""
        self.buffer.period = self._period
        if self.iterations > 1:
            if prod(self._extents[: self._carried]) > 1:
                raise self._error("dimensions outside of it have several elements")
            self.buffer.carried = self._overlap * prod(self._extents[self._carried + 1 :])
        return body
