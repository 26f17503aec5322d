"""Bounds on the elements of a padded tensor, and on results of operators that mask elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Array
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

# Floats that a network computes are taken to be below 2^120 in magnitude.
_MOST = 2.0**120
# Softmax is exactly 0, in float32, for elements that are this far below the greatest.
_VANISHES = 104.0


@dataclass(frozen=True)
class Bounds:
    """The least and the greatest element of a set; both may be infinite."""

    low: float
    high: float

    def union(self, other: Bounds) -> Bounds:
        return Bounds(min(self.low, other.low), max(self.high, other.high))

    def combined(self, other: Bounds, function: Callable[[float, float], float]) -> Bounds:
        """Bounds on a sum, difference, product or quotient: they are among those of the ends."""
        pairs = product((self.low, self.high), (other.low, other.high))
        ends = [function(x, y) for x, y in pairs]
        return ANY if any(map(math.isnan, ends)) else Bounds(min(ends), max(ends))


ANY = Bounds(-_MOST, _MOST)
ZERO = Bounds(0.0, 0.0)


@dataclass(frozen=True)
class Elements:
    """Bounds on the elements of a tensor that has padded positions along some axes.

    ``real`` bounds the elements without padding, ``padded`` by axis those with padding along this
    axis only. ``best`` is by axis a lower bound on the greatest element without padding of each row
    along this axis, and ``worst`` an upper bound on the least. ``rows`` is by axis a lower bound on
    the greatest and an upper bound on the least element of each row, rows and elements of padding
    included.
    """

    real: Bounds = ANY
    padded: Mapping[int, Bounds] = field(default_factory=dict)
    best: Mapping[int, float] = field(default_factory=dict)
    worst: Mapping[int, float] = field(default_factory=dict)
    rows: Mapping[int, Bounds] = field(default_factory=dict)

    def at(self, axis: int | None) -> Bounds:
        """Bounds on the elements with padding along ``axis``, or without it."""
        return self.real if axis is None else self.padded.get(axis, self.real)

    def best_at(self, axis: int) -> float:
        return max(self.best.get(axis, self.real.low), self.real.low)

    def worst_at(self, axis: int) -> float:
        return min(self.worst.get(axis, self.real.high), self.real.high)

    @property
    def low(self) -> float:
        """A lower bound on all elements."""
        return min([self.real.low, *(bounds.low for bounds in self.padded.values())])

    def row(self, axis: int) -> Bounds:
        """The item of ``rows``."""
        return self.rows.get(axis, Bounds(self.low, math.inf))

    def moved(self, axes: Mapping[int, int]) -> Elements:
        """The same elements, where each old axis has become another."""

        return Elements(
            self.real,
            {new: self.padded[old] for old, new in axes.items() if old in self.padded},
            {new: self.best[old] for old, new in axes.items() if old in self.best},
            {new: self.worst[old] for old, new in axes.items() if old in self.worst},
            {new: self.rows[old] for old, new in axes.items() if old in self.rows},
        )

    def mapped(self, function: Callable[[float], float]) -> Elements:
        """The results of a function that is nowhere decreasing."""

        def of(bounds: Bounds) -> Bounds:
            return Bounds(function(bounds.low), function(bounds.high))

        return Elements(
            of(self.real),
            {axis: of(bounds) for axis, bounds in self.padded.items()},
            {axis: function(value) for axis, value in self.best.items()},
            {axis: function(value) for axis, value in self.worst.items()},
            {axis: of(bounds) for axis, bounds in self.rows.items()},
        )

    def vanishes(self, axis: int) -> bool:
        """Whether Softmax of each row along ``axis`` is exactly 0 at padded positions."""
        return self.at(axis).high < self.best_at(axis) - _VANISHES


def of_type(info: TensorType) -> Bounds:
    """Bounds on the elements of a type."""
    if info.dtype.kind == "b":
        return Bounds(0.0, 1.0)
    if info.dtype.kind in "iu":
        limits = np.iinfo(info.dtype)
        return Bounds(float(limits.min), float(limits.max))
    return ANY


def of_values(values: Sequence[Array], sizes: tuple[int, ...]) -> Elements:
    """Bounds on elements between those of all ``values``, arrays of one shape; along each axis, the
    first ``sizes`` are not padding. ``best``, ``worst`` and ``rows`` are those of the first
    array."""
    axes = [axis for axis, size in enumerate(sizes) if values[0].shape[axis] != size]
    real = tuple(slice(size) for size in sizes)

    def padded(axis: int) -> Bounds:
        return _bounds(values, (*real[:axis], slice(sizes[axis], None), *real[axis + 1 :]))

    first = values[0][real]
    rows = axes if first.size else []
    return Elements(
        _bounds(values, real),
        {axis: padded(axis) for axis in axes},
        {axis: float(first.max(axis).min()) for axis in rows},
        {axis: float(first.min(axis).max()) for axis in rows},
        {
            axis: Bounds(float(values[0].max(axis).min()), float(values[0].min(axis).max()))
            for axis in rows
        },
    )


def _bounds(values: Sequence[Array], where: tuple[slice, ...]) -> Bounds:
    parts = [value[where] for value in values]
    if not parts[0].size:
        return ZERO
    return Bounds(
        float(min(part.min() for part in parts)), float(max(part.max() for part in parts))
    )
