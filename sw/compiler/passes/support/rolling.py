"""Rolling buffers, which outlive the iteration in which they are filled.

The first index of a rolling buffer is the iteration. Along a carried dimension an iteration
computes only elements that its predecessor has not computed. Elements are counted from the end of
the region, where the next iteration finds the data that it reuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from amaranth_vta.sw.compiler.nest.ir import (
    Allocate,
    Assign,
    LoweringError,
    NestBuffer,
    Stmt,
    rebuild,
)
from amaranth_vta.sw.compiler.te.dtypes import Interval
from amaranth_vta.sw.compiler.te.expr import Access, Affine, Expr, Var
from amaranth_vta.sw.compiler.te.schedule import Stage
from amaranth_vta.sw.compiler.te.simplify import value_interval
from amaranth_vta.sw.compiler.te.traverse import rebuild as rebuild_expression

from .stage_loops import Bounds

Ranges = Mapping[Var, Interval]


class RollingBuffer:
    """The buffer of ``stage``, filled in ``turns`` iterations, which are placed in order, in parts
    of equal iterations.
    """

    def __init__(self, stage: Stage, turns: int) -> None:
        self.stage = stage
        self.turns = turns
        self.buffer = NestBuffer(
            stage.name,
            (),
            stage.tensor.dtype,
            stage.scope,
            stage.origin,
            stage.copies,
            rolling=True,
            bank=stage.bank,
        )
        # The carried dimension, None if there is none.
        self._carried = next(
            (d for d, axis in enumerate(stage.op.axis) if axis is stage.carried), None
        )
        self._extents = [0] * len(stage.op.axis)
        # State of the part placed last: its iteration, the origin of its indices, and the end of
        # the region computed by the previous iteration, None in the first one.
        self._turn = Affine({})
        self._origins: list[Affine] = []
        self._known: Affine | None = None
        # End of the last iteration placed, and how many elements of the carried dimension it
        # computes.
        self._end: tuple[Affine, int] | None = None

    def place(self, bounds: Bounds, turn: Affine, ranges: Ranges) -> Bounds:
        """The part of the region ``bounds`` that the iterations ``turn`` must compute."""
        self._turn = turn
        self._origins = [begin for begin, _ in bounds]
        bounds = list(bounds)
        if self._carried is not None:
            bounds[self._carried] = self._new(*bounds[self._carried], ranges)
        self._extents = [
            max(most, extent) for most, (_, extent) in zip(self._extents, bounds, strict=True)
        ]
        return bounds

    def _new(self, begin: Affine, extent: int, ranges: Ranges) -> tuple[Affine, int]:
        """Begin and extent of the new elements along the carried dimension."""
        end, var = begin.plus(Affine({}, extent)), next(iter(self._turn.terms), None)
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
        assert self._carried is not None
        self._origins[self._carried] = end
        return end.plus(Affine({}, -new)), new

    def _error(self, reason: str) -> LoweringError:
        return LoweringError(f"{self.stage.name} is carried along {self.stage.carried}: {reason}")

    def read(self, access: Access, ranges: Ranges) -> Access:
        """``access`` to the tensor, rewritten to the buffer."""
        turn = self._turn
        indices = [
            index - origin if origin.terms or origin.const else index
            for index, origin in zip(access.indices, self._origins, strict=True)
        ]
        if self._known is not None:
            assert self._carried is not None
            back = access.indices[self._carried] - self._known
            low, high = value_interval(back, ranges)
            if low < 0 <= high:
                raise self._error(f"{access} reads from two iterations at once")
            if high < 0:
                turn, indices[self._carried] = turn.plus(Affine({}, -1)), back
        return Access(self.buffer, [turn, *indices])

    def written(self, indices: Sequence[Affine], bounds: Bounds) -> list[Affine]:
        """The buffer indices for ``indices`` relative to ``bounds``, the result of `place`."""
        found = list(indices)
        if self._carried is not None:
            extent = bounds[self._carried][1]
            found[self._carried] = found[self._carried].plus(Affine({}, -extent))
        return [self._turn, *found]

    def around(self, body: Stmt) -> Stmt:
        """``body``, which contains all parts, within the allocation of the buffer."""
        if not self._origins:
            return body
        self.buffer.shape = (self.turns, *self._extents)
        return Allocate(self.buffer, body if self._carried is None else self._from_begin(body))

    def _from_begin(self, stmt: Stmt) -> Stmt:
        """``stmt`` with elements counted from the beginning of the carried dimension."""
        assert self._carried is not None
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

        return statement(stmt)
