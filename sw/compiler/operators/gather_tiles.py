"""Gathers tiles of one or several tensors: crops, strides, flips, padding, concatenation.

Each tile of the output is a copy of a source tile, or ``fill``. The index of the source tile is a
sum of one term per axis of the output, and each term is piecewise affine: a strided slice has one
piece per axis, reflection padding three. Each piece takes one or more LOADs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import prod

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile
from amaranth_vta.sw.compiler.tuner.workload import tuned

from .building_blocks.tile_movement import Move, Moving


@dataclass(frozen=True)
class AffinePiece:
    """Indices i of an axis from the end of the previous piece to ``end`` - 1, each of which adds
    ``start`` + ``step`` · i to the index of the source tile.
    """

    end: int
    start: int
    step: int


@dataclass(frozen=True)
class SourcePart:
    """Indices of one axis, from the end of the previous part to ``end`` - 1, that are gathered from
    one ``source``; ``axes`` holds the pieces of each axis.
    """

    end: int
    source: int
    axes: tuple[tuple[AffinePiece, ...], ...]


@dataclass(frozen=True)
class GatherTiles(Moving):
    """Gathers an output of ``shape``, in tiles, from sources with ``sizes`` tiles each.

    ``parts`` partition axis ``cut`` of the output. Tiles whose index on any axis d is outside the
    half-open range ``inside[d]`` are constant: all their scalars are ``fill``.
    """

    sizes: tuple[int, ...]
    shape: tuple[int, ...]
    parts: tuple[SourcePart, ...]
    inside: tuple[tuple[int, int], ...]
    cut: int = 0
    fill: int = 0

    def move(self, env: Environment) -> Move:
        tile = (env.BATCH, env.BLOCK_OUT)
        sources = [
            te.placeholder(
                (size, *tile), f"x{number}" if len(self.sizes) > 1 else "x", env.out_dtype
            )
            for number, size in enumerate(self.sizes)
        ]
        shape, order = (*self.shape, *tile), [*self._order(), len(self.shape), len(self.shape) + 1]
        places = [order.index(axis) for axis in range(len(shape))]
        if self._is_flipped():
            return self._flipping(sources, env)
        x_buf = te.compute(
            tuple(shape[axis] for axis in order),
            lambda *i: self._scalar(sources, [i[at] for at in places]).astype(env.acc_dtype),
            "x_buf",
        )
        y = te.compute(
            shape, lambda *i: x_buf(*(i[axis] for axis in order)).astype(env.out_dtype), "y"
        )
        return Move(sources, [x_buf], y)

    def _is_flipped(self) -> bool:
        """Whether the last axis runs backwards, so that each tile would need a LOAD of its own."""
        pieces = self.parts[0].axes[-1]
        whole = self.inside[-1] == (0, self.shape[-1])
        return len(self.parts) == len(pieces) == 1 and whole and pieces[0].step < 0

    def _flipping(self, sources: list[Tensor], env: Environment) -> Move:
        """Loads the last axis forwards; the ALU reverses it."""
        shape, last = (*self.shape, env.BATCH, env.BLOCK_OUT), self.shape[-1] - 1

        def turned(i: tuple[Expr, ...]) -> list[Expr]:
            return [*i[:-3], last - i[-3], *i[-2:]]

        x_buf = te.compute(
            shape, lambda *i: self._scalar(sources, turned(i)).astype(env.acc_dtype), "x_buf"
        )
        flipped = te.compute(shape, lambda *i: x_buf(*turned(i)), "flipped")
        y = te.compute(shape, lambda *i: flipped(*i).astype(env.out_dtype), "y")
        return Move(sources, [x_buf], y, copied=[flipped])

    def _order(self) -> list[int]:
        """Axis order in the accumulators: the order of the output, or the order of the source if
        that needs fewer LOADs and STOREs.
        """
        axes = list(range(len(self.shape)))
        steps = [pieces[0].step for pieces in self.parts[0].axes]
        pieces = sum(prod(map(len, part.axes)) for part in self.parts)
        if pieces > 1 or self.inside != tuple((0, extent) for extent in self.shape):
            return axes
        own = [prod(self.shape[axis + 1 :]) for axis in axes]
        by_source = sorted(axes, key=lambda axis: -steps[axis])

        def requests(order: list[int]) -> int:
            sides = ([(self.shape[axis], side[axis]) for axis in order] for side in (steps, own))
            return sum(map(_requests, sides))

        return min((axes, by_source), key=requests)

    def _scalar(self, sources: list[Tensor], i: list[Expr]) -> Expr:
        index, within = i[:-2], i[-2:]

        def of_part(part: SourcePart, axis: int, number: Expr | int) -> Expr:
            if axis == len(index):
                return sources[part.source](number, *within)
            return _chain(
                index[axis],
                [
                    (
                        piece.end,
                        of_part(part, axis + 1, number + index[axis] * piece.step + piece.start),
                    )
                    for piece in part.axes[axis]
                ],
            )

        whole = _chain(index[self.cut], [(part.end, of_part(part, 0, 0)) for part in self.parts])
        bounds = [
            bound
            for place, (first, end), extent in zip(index, self.inside, self.shape, strict=True)
            for bound in ([place >= first] if first else [])
            + ([place < end] if end < extent else [])
        ]
        return te.if_then_else(te.all(*bounds), whole, self.fill) if bounds else whole


def _requests(axes: list[tuple[int, int]]) -> int:
    """Number of bursts plus number of instructions to transfer tiles whose indices step through
    ``axes``, each given by its extent and its step, outermost first."""
    axes = [(extent, step) for extent, step in axes if extent > 1]
    length = 1
    while axes and axes[-1][1] == length:
        length *= axes.pop()[0]
    runs = prod(extent for extent, _ in axes)
    return runs + (runs // axes[-1][0] if axes and axes[-1][1] >= 0 else runs)


def _chain(index: Expr, cases: list[tuple[int, Expr]]) -> Expr:
    """The value of the first case whose end is beyond ``index``."""
    *others, (_, last) = cases
    return reduce(
        lambda rest, case: te.if_then_else(index < case[0], case[1], rest), others[::-1], last
    )


def gather_tiles(
    workload: GatherTiles,
    env: Environment,
    knobs: OutputTile | None = None,
    name: str = "gather_tiles",
) -> Function:
    """Build a function of the sources, (tiles, BATCH, BLOCK_OUT), and output (*shape, BATCH,
    BLOCK_OUT), all out_dtype. The knobs tile the axes of the output. Default knobs and exceptions:
    see `tuned`; no schedule fits a ``fill`` that the machine cannot pad with.
    """
    return tuned(workload, env, knobs, name)
