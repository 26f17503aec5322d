"""Rolling buffers, which outlive the iteration in which they are filled.

The first index of a rolling buffer is the turn. An iteration has one turn or, if the stage is
computed in a loop within it, one turn for each iteration of that loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from amaranth_vta.sw.compiler.nest.ir import Allocate, LoweringError, NestBuffer, Stmt
from amaranth_vta.sw.compiler.te.dtypes import Interval
from amaranth_vta.sw.compiler.te.expr import Access, Affine, Var
from amaranth_vta.sw.compiler.te.schedule import Stage

from .stage_loops import Bounds

Ranges = Mapping[Var, Interval]


@dataclass(frozen=True)
class Written:
    """A region to write, and the turn and first indices of the buffer that it is written to."""

    bounds: Bounds
    turn: Affine
    first: Sequence[int]

    def indices(self, indices: Sequence[Affine]) -> list[Affine]:
        """The buffer indices for ``indices`` relative to the region."""
        moved = (i.plus(Affine({}, at)) for i, at in zip(indices, self.first, strict=True))
        return [self.turn, *moved]


class RollingBuffer:
    """The buffer of ``stage``, filled in ``iterations``, which are placed in order, in parts of
    equal iterations. Each iteration writes its whole region; subclasses reuse the overlap of
    consecutive iterations.
    """

    def __init__(self, stage: Stage, iterations: int) -> None:
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
        )
        # Turns of an iteration, and the maximum extents of a turn.
        self._period = 1
        self._extents = [0] * len(stage.op.axis)
        # The turn of the part placed last, and the origin of its indices.
        self._turn = Affine({})
        self._origins: list[Affine] = []

    def place(
        self, bounds: Bounds, iteration: Affine, inner: tuple[Affine, int], ranges: Ranges
    ) -> list[Written]:
        """The regions that the iterations ``iteration`` must write for the buffer to hold the
        region ``bounds``. ``inner`` is the iteration of the loop within them at which the stage is
        computed, and the number of its iterations.
        """
        within, self._period = inner
        self._turn = iteration.times(self._period).plus(within)
        self._origins = [begin for begin, _ in bounds]
        return self._written(bounds, iteration, ranges)

    def _written(self, bounds: Bounds, iteration: Affine, ranges: Ranges) -> list[Written]:
        """The result of `place` for the current turn."""
        self._extend(bounds)
        return [Written(bounds, self._turn, [0] * len(bounds))]

    def _extend(self, bounds: Bounds) -> None:
        """Make room for the region ``bounds`` in every turn."""
        self._extents = [
            max(most, extent) for most, (_, extent) in zip(self._extents, bounds, strict=True)
        ]

    def read(self, access: Access, ranges: Ranges) -> Access:
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
        self.buffer.shape = (self._turns, *self._extents)
        return Allocate(self.buffer, self._finished(body))

    @property
    def _turns(self) -> int:
        return self.iterations * self._period

    def _finished(self, body: Stmt) -> Stmt:
        """``body`` for the final shape of the buffer."""
        return body

    @cached_property
    def _carried(self) -> int:
        """The dimension along which a subclass carries elements."""
        return next(d for d, axis in enumerate(self.stage.op.axis) if axis is self.stage.carried)

    def _error(self, reason: str) -> LoweringError:
        how = "kept" if self.stage.kept else f"carried along {self.stage.carried}"
        return LoweringError(f"{self.stage.name} is {how}: {reason}")
