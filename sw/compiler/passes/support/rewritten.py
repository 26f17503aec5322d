"""Rolling buffers whose overlap of consecutive iterations is written twice.

Each iteration copies only elements that its predecessor has not copied. It writes the last of them
a second time, into the turn of the next iteration, so that each turn holds its whole region
contiguously. Loops between the iteration and the copy have a turn for each of their iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from amaranth_vta.sw.compiler.nest.ir import Allocate, LoweringError, NestBuffer, Stmt
from amaranth_vta.sw.compiler.te.expr import Access, Affine
from amaranth_vta.sw.compiler.te.schedule import Stage

from .rolling import Ranges
from .stage_loops import Bounds


@dataclass(frozen=True)
class Written:
    """A region to write, and the turn and first index of the buffer that it is written to."""

    bounds: Bounds
    turn: Affine
    first: list[int]

    def indices(self, indices: Sequence[Affine]) -> list[Affine]:
        """The buffer indices for ``indices`` relative to the region."""
        moved = (i.plus(Affine({}, at)) for i, at in zip(indices, self.first, strict=True))
        return [self.turn, *moved]


class RewrittenBuffer:
    """The buffer of ``stage``, filled in ``iterations``, which are placed in order, in parts of
    equal iterations, each with all iterations of the loop that the stage is computed at.
    """

    def __init__(self, stage: Stage, iterations: int) -> None:
        assert stage.rewritten is not None
        self.stage = stage
        self.iterations = iterations
        self.buffer = NestBuffer(
            stage.name,
            (),
            stage.tensor.dtype,
            stage.scope,
            stage.origin,
            stage.copies,
            rolling=True,
            bank=stage.bank,
            ahead=stage.ahead,
        )
        self._dimension = next(d for d, axis in enumerate(stage.op.axis) if axis is stage.carried)
        self._overlap = stage.rewritten
        self._extents = [0] * len(stage.op.axis)
        self._turn = Affine({})
        self._origins: list[Affine] = []
        # The part placed last, and the end of the region of its last iteration.
        self._part: Affine | None = None
        self._end: Affine | None = None
        self._before: Affine | None = None

    def place(
        self, bounds: Bounds, iteration: Affine, inner: tuple[Affine, int], ranges: Ranges
    ) -> list[Written]:
        """What the iterations ``iteration`` must write to have the region ``bounds``. ``inner`` is
        the iteration of the loop that the stage is computed at, and their number.
        """
        self.buffer.period = inner[1]
        self._turn = iteration.times(inner[1]).plus(inner[0])
        self._origins = [begin for begin, _ in bounds]
        self._extents = [
            max(most, extent) for most, (_, extent) in zip(self._extents, bounds, strict=True)
        ]
        if self._part is None or not iteration.same(self._part):
            self._part, self._before = iteration, self._end
        begin, extent = bounds[self._dimension]
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
        found = [self._written(bounds, known, extent, self._turn, known)]
        if not last:
            if extent - known < self._overlap:
                raise self._error(f"an iteration writes only {extent - known} elements")
            later = self._turn.plus(Affine({}, inner[1]))
            found.append(self._written(bounds, extent - self._overlap, extent, later, 0))
        return found

    def _written(self, bounds: Bounds, begin: int, end: int, turn: Affine, at: int) -> Written:
        """Elements ``begin`` to ``end`` - 1 along the carried dimension, written from ``at`` on."""
        part, first = list(bounds), [0] * len(bounds)
        whole = bounds[self._dimension][0]
        part[self._dimension] = whole.plus(Affine({}, begin)), end - begin
        first[self._dimension] = at
        return Written(part, turn, first)

    def _error(self, reason: str) -> LoweringError:
        return LoweringError(f"{self.stage.name} is carried along {self.stage.carried}: {reason}")

    def read(self, access: Access) -> Access:
        """``access`` to the tensor, rewritten to the buffer."""
        indices = [
            index - origin if origin.terms or origin.const else index
            for index, origin in zip(access.indices, self._origins, strict=True)
        ]
        return Access(self.buffer, [self._turn, *indices])

    def around(self, body: Stmt) -> Stmt:
        """``body``, which contains all parts, within the allocation of the buffer."""
        if not self._origins:
            return body
        buffer = self.buffer
        buffer.shape = (self.iterations * buffer.period, *self._extents)
        if self.iterations > 1:
            outer = prod(self._extents[: self._dimension])
            if outer > 1:
                raise self._error("dimensions outside of it have several elements")
            buffer.carried = self._overlap * prod(self._extents[self._dimension + 1 :])
        return Allocate(buffer, body)
