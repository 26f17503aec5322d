"""Roundings of sums equal their definitions, one number at a time."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
import pytest

from amaranth_vta.sw.compiler.operators.building_blocks.integer_rounding import (
    Multiplier,
    Quotient,
    StepFunction,
)

SUMS = np.arange(-3000, 3000)


def away_from_zero(value: Fraction) -> int:
    """The nearest integer, of two that are as near the one farther from 0."""
    magnitude = floor(abs(value) + Fraction(1, 2))
    return magnitude if value >= 0 else -magnitude


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 16, 49])
def test_a_quotient_is_rounded_half_away_from_zero(count: int) -> None:
    wanted = [away_from_zero(Fraction(int(value), count)) for value in SUMS]
    np.testing.assert_array_equal(Quotient(count).evaluate(SUMS), wanted)


@pytest.mark.parametrize("shift", [1, 0, -1, -5])
def test_a_product_that_is_rounded_once_is_the_nearest_integer(shift: int) -> None:
    for multiplier in (1 << 30, (1 << 31) - 1, 1_300_000_001):
        factor = Fraction(multiplier) * Fraction(2) ** (shift - 31)
        wanted = [away_from_zero(factor * int(value)) for value in SUMS]
        found = Multiplier(multiplier, shift, twice=False).evaluate(SUMS)
        np.testing.assert_array_equal(found, wanted)


def test_a_product_that_is_rounded_twice_may_be_another_integer() -> None:
    """2.4375 is rounded to 2.5 first, by a multiplier of 1/2 and a shift of 3."""
    once, twice = (Multiplier(1 << 30, -3, how).evaluate(SUMS) for how in (False, True))
    different = np.flatnonzero(once != twice)
    assert different.size == 188
    assert np.abs(once - twice).max() == 1
    wanted = [
        away_from_zero(Fraction(floor(Fraction(int(v), 2) + Fraction(1, 2)), 8)) for v in SUMS
    ]
    np.testing.assert_array_equal(twice, wanted)


def test_steps_rise_by_one_from_each_begin_on() -> None:
    rounding = StepFunction(-2, (-5, 0, 0, 7))
    sums = np.array([-100, -6, -5, -1, 0, 6, 7, 100])
    np.testing.assert_array_equal(rounding.evaluate(sums), [-2, -2, -1, -1, 1, 1, 2, 2])
