"""Decompose maps of tiles into affine pieces along each axis of the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.operators.gather_tiles import AffinePiece, GatherTiles, SourcePart
from amaranth_vta.sw.runtime.network.tile_layout import Array

from .layer import ByteRun, Unsupported

# Each piece is a separate LOAD in the loop nest.
_MOST_PIECES = 64
_LONGEST_PERIOD = 16


@dataclass(frozen=True)
class TileMap:
    """For each tile of a result with any number of axes: its ``source``, -1 for a constant, and its
    index in that source, ``numbers``."""

    source: Array
    numbers: Array

    def runs(self, nbytes: int) -> tuple[ByteRun, ...]:
        """The tiles, of ``nbytes`` each, as runs of consecutive tiles of one source."""
        source, numbers = self.source.reshape(-1), self.numbers.reshape(-1)
        ends = (np.diff(source) != 0) | (np.diff(numbers) != 1)
        begins = [0, *(np.flatnonzero(ends) + 1).tolist(), len(source)]
        return tuple(
            ByteRun(int(source[begin]), int(numbers[begin]) * nbytes, (end - begin) * nbytes)
            for begin, end in pairwise(begins)
        )


def gathered(moved: TileMap, sizes: tuple[int, ...], fill: int) -> GatherTiles:
    """The workload for the map ``moved`` from sources of ``sizes`` tiles; constants are ``fill``.
    Raises `Unsupported`."""
    inside, shape = _inside(moved.source >= 0), moved.source.shape
    cut, ends = _cut(moved.source, inside)
    groups: list[_Group] = []
    first = inside[cut][0]
    for end in ends:
        bounds = [(first, end) if axis == cut else item for axis, item in enumerate(inside)]
        box = tuple(slice(*item) for item in bounds)
        source = int(moved.source[tuple(begin for begin, _ in bounds)])
        groups.append(_Group(source, bounds, _terms(moved.numbers[box])))
        first = end
    # An axis with a periodic term is split into two axes.
    periods = [1] * len(shape)
    if len(groups) == 1:
        periods = [_period(*item) for item in zip(groups[0].terms, inside, shape, strict=True)]
    whole: list[int] = []
    kept: list[tuple[int, int]] = []
    for extent, period, limits in zip(shape, periods, inside, strict=True):
        split = [extent // period, period] if period > 1 else [extent]
        whole += split
        kept += [(0, size) for size in split] if period > 1 else [limits]
    place = cut + sum(period > 1 for period in periods[:cut])
    parts = []
    for group in groups:
        stops, stop = list(shape), whole[place]
        # The last part extends to the end of its axis, past the data.
        if group is not groups[-1]:
            stops[cut] = stop = group.bounds[cut][1]
        parts.append(SourcePart(stop, group.source, group.pieces(periods, stops)))
    count = sum(prod(map(len, part.axes)) for part in parts)
    if count > _MOST_PIECES:
        raise Unsupported(f"it moves its data in {count:,} pieces, more than {_MOST_PIECES}")
    return GatherTiles(sizes, tuple(whole), tuple(parts), tuple(kept), place, fill)


@dataclass(frozen=True)
class _Group:
    """The part of a map within ``bounds``: its single ``source`` and the ``terms`` of each axis."""

    source: int
    bounds: list[tuple[int, int]]
    terms: list[Array]

    def pieces(
        self, periods: Sequence[int], ends: Sequence[int]
    ) -> tuple[tuple[AffinePiece, ...], ...]:
        """The pieces of each axis, up to its end; two tuples for an axis with a period."""
        made: list[tuple[AffinePiece, ...]] = []
        for terms, (first, _), period, end in zip(
            self.terms, self.bounds, periods, ends, strict=True
        ):
            if period == 1:
                made.append(_pieces(terms, first, end))
                continue
            table = terms.reshape(-1, period)
            made.append(_pieces(table[:, 0], 0, len(table)))
            made.append(_pieces(table[0] - table[0, 0], 0, period))
        return tuple(made)


def _inside(there: Array) -> list[tuple[int, int]]:
    """For each axis, the half-open range of indices with data. Raises `Unsupported` if the box of
    these ranges also contains constants."""
    found = np.argwhere(there)
    if not len(found):
        raise Unsupported("its result is constant")
    bounds = list(zip(found.min(axis=0).tolist(), (found.max(axis=0) + 1).tolist(), strict=True))
    if not there[tuple(slice(*item) for item in bounds)].all():
        raise Unsupported("it puts constants between its data")
    return bounds


def _cut(source: Array, inside: Sequence[tuple[int, int]]) -> tuple[int, list[int]]:
    """The axis along which the source changes, and the ends of the parts with one source each.
    Raises `Unsupported` if it changes along several axes."""
    data = source[tuple(slice(*item) for item in inside)]
    for axis, (first, end) in enumerate(inside):
        line = np.moveaxis(data, axis, 0).reshape(data.shape[axis], -1)
        if (line == line[:, :1]).all():
            changes = np.flatnonzero(np.diff(line[:, 0])) + 1
            return axis, [*(first + changes).tolist(), end]
    raise Unsupported("it interleaves several tensors")


def _terms(numbers: Array) -> list[Array]:
    """Split ``numbers`` into a sum of one term per axis. Raises `Unsupported` if there is no such
    sum."""
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
    """End and step of each maximal affine run."""
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


def _pieces(terms: Array, first: int, end: int) -> tuple[AffinePiece, ...]:
    """The pieces of an axis whose ``terms`` begin at index ``first``; the last piece is extended to
    ``end``."""
    runs = _runs(terms)
    made = []
    for begin, (stop, step) in zip([0, *(stop for stop, _ in runs)], runs, strict=False):
        made.append(AffinePiece(first + stop, int(terms[begin]) - step * (first + begin), step))
    made[-1] = AffinePiece(end, made[-1].start, made[-1].step)
    return tuple(made)


def _period(terms: Array, inside: tuple[int, int], extent: int) -> int:
    """The period p for which term p · q + r is an affine function of q plus a function of r, if
    that needs fewer pieces; otherwise 1."""
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
