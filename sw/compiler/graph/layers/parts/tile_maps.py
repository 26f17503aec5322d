"""Maps of tiles to tiles, as pieces that are affine in each axis of the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.operators.gather_tiles import GatherTiles, Part, Piece
from amaranth_vta.sw.runtime.network.tile_layout import Array

from .layer import Unsupported

# The most pieces: each is an instruction of its own in the loop nest.
_MOST_PIECES = 64
_LONGEST_PERIOD = 16


@dataclass(frozen=True)
class TileMap:
    """For each tile of a result, by any axes: the number of its ``source``, -1 for a constant, and
    the ``numbers`` of the tile there."""

    source: Array
    numbers: Array


def gathered(moved: TileMap, sizes: tuple[int, ...], fill: int) -> GatherTiles:
    """The workload of a map of tiles from sources of so many ``sizes``. Raises `Unsupported`."""
    inside = _inside(moved.source >= 0)
    cut, ends = _cut(moved.source, inside)
    first, shape = inside[cut][0], moved.source.shape
    groups = []
    for end in ends:
        box = [slice(*bounds) for bounds in inside]
        box[cut] = slice(first, end)
        terms = _terms(moved.numbers[tuple(box)])
        groups.append((end, int(moved.source[tuple(part.start for part in box)]), box, terms))
        first = end

    # An axis whose terms repeat with a period becomes two.
    periods = [
        _period(groups[0][3][axis], inside[axis], shape[axis]) if len(groups) == 1 else 1
        for axis in range(len(shape))
    ]
    parts = []
    for end, source, box, terms in groups:
        pieces: list[tuple[Piece, ...]] = []
        for axis, (bounds, own) in enumerate(zip(box, terms, strict=True)):
            if periods[axis] > 1:
                table = own.reshape(-1, periods[axis])
                pieces += [_pieces(table[:, 0], 0, len(table))]
                pieces += [_pieces(table[0] - table[0, 0], 0, periods[axis])]
            else:
                pieces.append(_pieces(own, bounds.start, shape[axis] if axis != cut else end))
        parts.append(Part(end, source, tuple(pieces)))
    parts[-1] = Part(shape[cut], parts[-1].source, parts[-1].axes)
    count = sum(prod(map(len, part.axes)) for part in parts)
    if count > _MOST_PIECES:
        raise Unsupported(f"it moves its data in {count:,} pieces, more than {_MOST_PIECES}")
    whole: list[int] = []
    bounds: list[tuple[int, int]] = []
    for extent, period, own_bounds in zip(shape, periods, inside, strict=True):
        split = [extent // period, period] if period > 1 else [extent]
        whole += split
        bounds += [(0, size) for size in split] if period > 1 else [own_bounds]
    at = cut + sum(period > 1 for period in periods[:cut])
    last = Part(whole[at], parts[-1].source, parts[-1].axes)
    return GatherTiles(sizes, tuple(whole), (*parts[:-1], last), tuple(bounds), at, fill)


def _inside(there: Array) -> list[tuple[int, int]]:
    """For each axis, the first index and the end of those that have data. Raises `Unsupported` if
    constants are within these."""
    found = np.argwhere(there)
    if not len(found):
        raise Unsupported("its result is constant")
    bounds = list(zip(found.min(axis=0).tolist(), (found.max(axis=0) + 1).tolist(), strict=True))
    if not there[tuple(slice(*item) for item in bounds)].all():
        raise Unsupported("its data has constants between it")
    return bounds


def _cut(source: Array, inside: Sequence[tuple[int, int]]) -> tuple[int, list[int]]:
    """The axis along which the source changes, and the ends of the parts of one source each."""
    data = source[tuple(slice(*item) for item in inside)]
    for axis, (first, end) in enumerate(inside):
        line = np.moveaxis(data, axis, 0).reshape(data.shape[axis], -1)
        if (line == line[:, :1]).all():
            changes = np.flatnonzero(np.diff(line[:, 0])) + 1
            return axis, [*(first + changes).tolist(), end]
    raise Unsupported("it takes its data from several tensors in turn")


def _terms(numbers: Array) -> list[Array]:
    """For each axis the terms whose sum the ``numbers`` are. Raises `Unsupported`."""
    base, terms = numbers.flat[0], []
    whole = np.full_like(numbers, base)
    for axis in range(numbers.ndim):
        line = numbers[tuple(slice(None) if other == axis else 0 for other in range(numbers.ndim))]
        terms.append(line - base)
        whole += (line - base).reshape([-1 if a == axis else 1 for a in range(numbers.ndim)])
    if not np.array_equal(whole, numbers):
        raise Unsupported("rows, columns and channels do not move independently of each other")
    terms[0] = terms[0] + base
    return terms


def _runs(terms: Array) -> list[tuple[int, int]]:
    """The ends of successive affine runs, and their steps."""
    runs: list[tuple[int, int]] = []
    at = 0
    while at < len(terms):
        step = int(terms[at + 1] - terms[at]) if at + 1 < len(terms) else 0
        end = at + 1
        while end < len(terms) and terms[end] - terms[end - 1] == step:
            end += 1
        runs.append((end, step if end - at > 1 else 0))
        at = end
    return runs


def _pieces(terms: Array, first: int, end: int) -> tuple[Piece, ...]:
    """The pieces of an axis whose index ``first`` has the first of ``terms``; the last piece ends
    at ``end``."""
    runs = _runs(terms)
    made = []
    for begin, (stop, step) in zip([0, *(stop for stop, _ in runs)], runs, strict=False):
        made.append(Piece(first + stop, int(terms[begin]) - step * (first + begin), step))
    made[-1] = Piece(end, made[-1].start, made[-1].step)
    return tuple(made)


def _period(terms: Array, inside: tuple[int, int], extent: int) -> int:
    """The period p with which the terms of an axis repeat: term p · q + r is a multiple of q plus
    one that depends on r; 1 if there is none, or if pieces are as few without one."""
    least, best = len(_runs(terms)), 1
    if inside != (0, extent):
        return 1
    for period in range(2, min(_LONGEST_PERIOD, extent // 2) + 1):
        if extent % period:
            continue
        table = terms.reshape(-1, period)
        steps = np.diff(table, axis=0)
        if (steps == steps.flat[0]).all() and len(_runs(table[0])) < least:
            least, best = len(_runs(table[0])), period
    return best
