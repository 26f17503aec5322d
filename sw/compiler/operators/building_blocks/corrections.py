"""Residual additions that are exact only with a correction for each value of the first operand.

Float32 rounds each operand's product with its scale separately. Where a sum is as close to a tie as
that rounding error, no linear form gives all of float32's results. A table of 256 small corrections
makes the first operand's product round as in float32; some factor near the second operand's ratio
then gives all results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from amaranth_vta.hw.config import Config

from .fixed_point import REACH, Array, FixedPoint, finest_shift

_LEAST, _MOST = -128, 127
_VALUES = np.arange(_LEAST, _MOST + 1)
# Number of shifts to try: with smaller shifts the corrections have a larger range.
_SHIFTS = 3


def corrected_sum(
    ratios: Sequence[float],
    offset: float,
    wanted: Array,
    bounds: tuple[int, int, int],
    config: Config,
) -> FixedPoint | None:
    """Find constants with corrections that give ``wanted``, int64 (256, 256), for each pair of
    operand values: approximately Σ ratio · operand + offset, rounded and clipped. Returns None if
    there are none, or if the machine lacks REQUANTIZE or LOOKUP. Arguments as in `fixed_point`.

    Raises `NotExact` if sums do not fit accumulators.
    """
    if not (config.requantize and config.lookup):
        return None
    finest = finest_shift([(_LEAST, _MOST)] * 2, ratios, offset, config)
    moves = sorted(range(-REACH, REACH + 1), key=abs)
    for shift, move in product(range(finest, max(finest - _SHIFTS, 0), -1), moves):
        joined = bool(config.multiply_add)
        plain = FixedPoint((), 0, shift, *bounds, scale=2.0**-shift, joined=joined)
        first, second = (round(ratio * 2**shift) for ratio in ratios)
        found = _corrected(replace(plain, factors=(first, second + move)), wanted, config)
        if found is not None:
            return found
    return None


def _corrected(plain: FixedPoint, wanted: Array, config: Config) -> FixedPoint | None:
    """Add an addend and corrections to ``plain`` so that it gives ``wanted``; None if there are
    none.
    """
    begins, (first, second) = plain.first_sums(config.acc_width), plain.factors
    total = first * _VALUES[:, None] + second * _VALUES
    least = (begins[wanted - plain.low] - total).max(axis=1)
    most = (begins[wanted - plain.low + 1] - 1 - total).min(axis=1)
    addend = (int(least.max()) + int(most.min())) // 2
    least, most = (np.clip(end - addend, _LEAST, _MOST) for end in (least, most))
    corrections = np.clip(0, least, most)
    found = replace(
        plain,
        addend=addend,
        corrections=tuple(corrections.tolist()),
        table=config.table_elements,
    )
    got = found.evaluate([_VALUES[:, None], _VALUES])
    return found if np.array_equal(got, wanted) else None
