"""Rolling buffers that read the overlap of consecutive iterations from the previous copy.

Along the carried dimension an iteration computes only elements that its predecessor has not
computed. Elements are counted from the end of the region, where the next iteration finds the data
that it reuses.
"""

from __future__ import annotations

from collections.abc import Sequence

from amaranth_vta.sw.compiler.nest.ir import Assign, Stmt, rebuild
from amaranth_vta.sw.compiler.te.expr import Access, Affine, Expr
from amaranth_vta.sw.compiler.te.schedule import Stage
from amaranth_vta.sw.compiler.te.simplify import value_interval
from amaranth_vta.sw.compiler.te.traverse import rebuild as rebuild_expression

from .rolling import Ranges, RollingBuffer, Written
from .stage_loops import Bounds


class CarriedBuffer(RollingBuffer):
    """A rolling buffer whose iterations have one turn each, and carry computed elements."""

    def __init__(self, stage: Stage, iterations: int) -> None:
        super().__init__(stage, iterations)
        # End of the region computed by the iteration before the part placed last, None in the first
        # one.
        self._known: Affine | None = None
        # End of the last iteration placed, and how many elements of the carried dimension it
        # computes.
        self._end: tuple[Affine, int] | None = None

    def _written(self, bounds: Bounds, iteration: Affine, ranges: Ranges) -> list[Written]:
        begin, extent = self._new(*bounds[self._carried], iteration, ranges)
        new, first = list(bounds), [0] * len(bounds)
        new[self._carried], first[self._carried] = (begin, extent), -extent
        self._extend(new)
        self._origins[self._carried] = begin.plus(Affine({}, extent))
        # Earlier iterations may have computed all of it.
        return [Written(new, self._turn, first)] if extent else []

    def _new(
        self, begin: Affine, extent: int, iteration: Affine, ranges: Ranges
    ) -> tuple[Affine, int]:
        """Begin and extent of the new elements along the carried dimension."""
        end, var = begin.plus(Affine({}, extent)), next(iter(iteration.terms), None)
        known, computed = self._end if self._end is not None else (None, 0)
        step = 0 if var is None else end.terms.get(var, 0)
        first = end if var is None else end.replace({var: Affine({})})
        if var is not None and (known is None or not first.same(known.plus(Affine({}, step)))):
            raise self._error(f"its end does not move by {step} with every iteration")
        known = end.plus(Affine({}, -step)) if var is not None else known
        new = extent
        if known is not None:
            overlap = known.plus(begin, -1)
            if overlap.terms or overlap.const > extent:
                raise self._error("the overlap of consecutive iterations is not constant")
            carried = max(overlap.const, 0)
            new = extent - carried
            if carried > (computed if var is None else min(computed, new)):
                raise self._error(f"it needs {carried} elements, more than an iteration computes")
            if carried and self.stage.copies == 1:
                raise self._error("double_buffer must keep the copy of the previous iteration")
        last = end if var is None else end.replace({var: Affine({}, ranges[var][1])})
        self._end, self._known = (last, new), known
        return end.plus(Affine({}, -new)), new

    def read(self, access: Access, ranges: Ranges) -> Access:
        found = super().read(access, ranges)
        if self._known is None:
            return found
        back = access.indices[self._carried] - self._known
        low, high = value_interval(back, ranges)
        if low < 0 <= high:
            raise self._error(f"{access} reads from two iterations at once")
        if high >= 0:
            return found
        indices = list(found.indices)
        indices[0], indices[1 + self._carried] = self._turn.plus(Affine({}, -1)), back
        return Access(self.buffer, indices)

    def _finished(self, body: Stmt) -> Stmt:
        """``body`` with elements counted from the beginning of the carried dimension."""
        place = 1 + self._carried
        extent = Affine({}, self.buffer.shape[place])

        def moved(indices: Sequence[Expr]) -> tuple[Expr, ...]:
            return tuple(i + extent if d == place else i for d, i in enumerate(indices))

        def expression(value: Expr) -> Expr:
            value = rebuild_expression(value, expression)
            if isinstance(value, Access) and value.source is self.buffer:
                return Access(self.buffer, moved(value.indices))
            return value

        def statement(part: Stmt) -> Stmt:
            if not isinstance(part, Assign):
                return rebuild(part, statement)
            mine = part.buffer is self.buffer
            indices = moved(part.indices) if mine else part.indices
            return Assign(part.buffer, indices, expression(part.value), part.label)

        return statement(body)
