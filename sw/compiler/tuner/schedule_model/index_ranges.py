"""Ranges of index expressions whose variables have ranges, numbers or arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod
from typing import Any

import numpy as np

from amaranth_vta.sw.compiler.te.expr import Affine, Binary, Const, Expr, Var
from amaranth_vta.sw.compiler.te.schedule import Stage

# A number, or an array with one item per schedule.
Size = Any
# The least and the greatest value.
Range = tuple[Size, Size]


def index_range(index: Expr, ranges: Mapping[Var, Range]) -> Range:
    """The range of an index; infinite if the index is of an unknown form."""
    form = Affine.of(index)
    if form is not None:
        low: Size = form.const
        high: Size = form.const
        for var, factor in form.terms.items():
            first, last = ranges[var] if factor > 0 else ranges[var][::-1]
            low, high = low + factor * first, high + factor * last
        return low, high
    match index:
        case Binary(op="//", right=Const() as by):
            low, high = index_range(index.left, ranges)
            # Tiles begin at multiples of the divisor.
            return low // by.value, low // by.value + (high - low) // by.value
        case Binary(op="%", right=Const() as by):
            low, high = index_range(index.left, ranges)
            within = low // by.value == high // by.value
            most = by.value - 1
            return np.where(within, low % by.value, 0), np.where(within, high % by.value, most)
        case Binary(op="+" | "-" as op):
            (low, high), other = index_range(index.left, ranges), index_range(index.right, ranges)
            first, last = other if op == "+" else (-other[1], -other[0])
            return low + first, high + last
    return -inf, inf


def strides(extents: Sequence[Size]) -> list[Size]:
    """The distances between elements along the axes of a dense tensor."""
    return [prod(extents[number + 1 :]) for number in range(len(extents))]


def steps(stage: Stage, indices: Sequence[Expr], extents: Sequence[Size]) -> list[Size]:
    """The distances between the tiles of a dense tensor, of ``extents`` in tiles, that a stage
    reads at ``indices`` along its axes; 0 along an axis where they are not equal.
    """
    found: list[Size] = []
    for axis in stage.op.axis[:-2]:
        places: list[Size] = []
        for number in range(3):
            at: dict[Var, Range] = dict.fromkeys(stage.op.axis, (0, 0))
            at[axis] = (number, number)
            values = (index_range(index, at)[0] for index in indices[:-2])
            places.append(sum(map(prod, zip(values, strides(extents), strict=True))))
        step = places[1] - places[0]
        found.append(np.where(places[2] - places[1] == step, step, 0))
    return found
