"""REQUANTIZE against float32 in NumPy, especially at ties, and against the model for arbitrary
bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw.datapath.requantize import RequantizingLane
from amaranth_vta.hw.isa import ROUND_TWICE_BIT, SCALE_FRACTION, SECOND_SHIFT_BIT, AluOp
from amaranth_vta.sim.model.arithmetic import requantized
from amaranth_vta.sim.testbench.amaranth import shared, simulate
from amaranth_vta.sw.compiler import te

Integers = npt.NDArray[np.int64]
# Sums (sets, sums), scales (sets,): in fixed point.
Cases = tuple[Integers, Integers]
SUMS = 8
WIDE = 1 << 24


def run_lane(sums: Integers, parameters: Integers, rounds_twice: bool = False) -> Integers:
    """The lane's results for each row of ``sums`` with its ``parameters`` (sets, 4), without
    pauses.
    """
    dut = shared(RequantizingLane, rounds_twice=rounds_twice)
    results = np.zeros_like(sums)

    async def feed(ctx: Any) -> None:
        for words, row in zip(parameters.tolist(), sums.tolist(), strict=True):
            ctx.set(dut.enable, 0)
            ctx.set(dut.operation, AluOp.REQUANTIZE)
            for number, word in enumerate(words):
                ctx.set(dut.parameter, 1 << number)
                ctx.set(dut.b, word)
                await ctx.tick()
            ctx.set(dut.parameter, 0)
            ctx.set(dut.enable, 1)
            for value in row:
                ctx.set(dut.a, value)
                ctx.set(dut.b, value >> 3)
                await ctx.tick()
            # Inputs change while the last sums are in flight; this must not replace their scale.
            for number in range(dut.latency):
                ctx.set(dut.operation, AluOp.MUL if number % 2 else AluOp.SHR)
                await ctx.tick()

    async def take(ctx: Any) -> None:
        for row in results:
            await ctx.tick().repeat(parameters.shape[1] + dut.latency - 1)
            for place in range(len(row)):
                await ctx.tick()
                row[place] = ctx.get(dut.result)
            await ctx.tick()

    simulate(dut, feed, take)
    return results


def with_bounds(sums: Integers, scales: Integers, rng: np.random.Generator) -> Any:
    """Sums without their biases, and parameters; most bounds are as wide as possible."""
    count = len(sums)
    bias = rng.integers(-(1 << 31), 1 << 31, count)
    low, high = np.sort(rng.integers(-128, 128, (2, count)), axis=0)
    widest = rng.random(count) < 0.7
    low, high = np.where(widest, -128, low), np.where(widest, 127, high)
    zero_point = np.where(rng.random(count) < 0.3, 0, rng.integers(-128, 128, count))
    bounds = zero_point % 256 | low % 256 << 8 | high % 256 << 16
    # Unused bits are arbitrary.
    upper = scales >> 32 | rng.integers(0, 1 << 15, count) << 17
    bounds |= rng.integers(0, 1 << 7, count) << 25
    parameters = np.stack([bias, scales, upper, bounds], axis=1).astype(np.int32)
    return (sums - bias[:, np.newaxis]).astype(np.int32), parameters, (zero_point, low, high)


def around_steps(scales: Integers, rng: np.random.Generator) -> Integers:
    """Sums around those whose product with the scale is a tie."""
    halves = rng.integers(-258, 258, (len(scales), SUMS)) + 0.5
    sums = np.rint(halves / np.ldexp(scales[:, np.newaxis].astype(np.float64), -SCALE_FRACTION))
    return sums.astype(np.int64) + rng.integers(-1, 2, sums.shape)


def float_scales(scales: npt.NDArray[Any]) -> Integers:
    return np.ldexp(scales.astype(np.float32).astype(np.float64), SCALE_FRACTION).astype(np.int64)


def usual(rng: np.random.Generator, count: int) -> Cases:
    scales = float_scales(np.exp2(rng.uniform(-20, 6, count)))
    return around_steps(scales, rng), scales


def ties(rng: np.random.Generator, count: int) -> Cases:
    """Products of few significant bits, so that ties are frequent; many scales are powers of 2."""
    few = rng.integers(1, rng.choice([2, 4096], count)) * np.exp2(rng.integers(-20, -7, count))
    scales = float_scales(few)
    return around_steps(scales, rng), scales


def nearly_ties(rng: np.random.Generator, count: int) -> Cases:
    """Products that rounding to 24 bits turns into a tie, but rounding to 25 bits might not."""
    sums = rng.integers(1 << 8, 1 << 24, (count, SUMS))
    halves = rng.integers(0, 256, count) + 0.5
    bits = (halves / sums[:, 0]).astype(np.float32).view(np.int32) + rng.integers(-1, 2, count)
    scales = bits.astype(np.int32).view(np.float32)
    scales = np.clip(scales, 2.0**-20, 63)
    sums[:, 1] = -sums[:, 0]
    return sums, float_scales(scales)


def extremes(rng: np.random.Generator, count: int) -> Cases:
    """Sums around powers of two, with the smallest and the largest scales."""
    powers = np.int64(1) << rng.integers(0, 25, (count, SUMS))
    sums = rng.choice([-1, 1], powers.shape) * powers + rng.integers(-2, 3, powers.shape)
    ends = [2.0**-20, 2.0**-20 + 2.0**-43, 2.0**-19, 1, 2.0**6 - 2.0**-18, 2.0**5]
    return np.clip(sums, 1 - (1 << 24), (1 << 24) - 1), float_scales(rng.choice(ends, count))


@pytest.mark.parametrize("kind", [usual, ties, nearly_ties, extremes])
def test_lane_rounds_as_float32_does(
    kind: Callable[[np.random.Generator, int], Cases],
) -> None:
    rng = np.random.default_rng(7)
    sums, scales = kind(rng, 250)
    # Beyond ±2^24, float32 does not hold all bits of a sum.
    sums = np.clip(sums, 1 - (1 << 24), (1 << 24) - 1)
    a, parameters, (zero_point, low, high) = with_bounds(sums, scales, rng)
    factors = np.ldexp(scales.astype(np.float64), -SCALE_FRACTION).astype(np.float32)
    whole = np.rint(sums.astype(np.float32) * factors[:, np.newaxis]).astype(np.float64).T
    want = np.clip(whole + zero_point, low, high).T
    parameters[:, 3] &= ~WIDE
    np.testing.assert_array_equal(run_lane(a, parameters), want)


def at_the_ends_of_the_window() -> tuple[Integers, Integers]:
    """Products at and next to both ends of the window that rounds to a half, in every binade."""
    rows = []
    for binade in range(-2, 8):
        least = 0 if binade < 0 else 1 << binade
        for whole in {least, least + 1, 2 * least - 1} - {-1}:
            half = 2 * whole + 1 << SCALE_FRACTION - 1
            for end in (1 << SCALE_FRACTION - 24 + binade, 0):
                for offset in (-end - 4, -end, 4 - end, end - 4, end, end + 4):
                    # Products by 4 reach 255; 2^-43 is one of them by 1.
                    rows.append([half + offset >> 2, 4])
                    if half + offset < 1 << 49:
                        rows.append([half + offset, 1])
                        rows.append([half + offset // 4, 1])
    scales, factors = np.array(rows).T
    return factors[:, np.newaxis] * np.array([1, -1]), scales


def anything(rng: np.random.Generator, count: int) -> tuple[Integers, Integers]:
    scales = rng.integers(0, 1 << 49, count) >> rng.integers(0, 49, count)
    sums = rng.integers(-(1 << 31), 1 << 31, (count, SUMS)) >> rng.integers(0, 31, (count, SUMS))
    usual_ones = np.clip(around_steps(np.maximum(scales, 1), rng), -(1 << 31), (1 << 31) - 1)
    return np.where(rng.random(sums.shape) < 0.5, sums, usual_ones), scales


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("wide", [0, WIDE])
def test_lane_does_what_the_model_does_for_any_bits(wide: int, twice: bool) -> None:
    rng = np.random.default_rng(wide)
    for sums, scales in (anything(rng, 300), at_the_ends_of_the_window()):
        # Wide sums are divided by 2^7 first.
        a, parameters, _ = with_bounds(sums << 7 if wide else sums, scales, rng)
        parameters[:, 3] = parameters[:, 3] & ~WIDE | wide
        want = requantized(a, *parameters.T[:, :, np.newaxis], rounds_twice=twice)
        np.testing.assert_array_equal(run_lane(a, parameters, twice), want)
        assert np.unique(want).size > 100


def test_lane_rounds_twice_as_tensorflow_lite_does() -> None:
    rng = np.random.default_rng(3)
    shift = np.repeat(np.arange(-12, 7), 20)
    multiplier = rng.integers(1 << 30, 1 << 31, shift.size)
    halves = rng.integers(-140, 140, (shift.size, SUMS)) - 0.5
    near = np.rint(halves * np.ldexp(1 / multiplier, 31 - shift)[:, np.newaxis])
    sums = near.astype(np.int64) + rng.integers(-2, 3, near.shape)
    product = te.multiply_by_quantized_multiplier(sums, multiplier[:, None], shift[:, None])
    zero_point, low, high = 3, -128, 120
    bias = rng.integers(-9000, 9000, shift.size)
    parameters = te.parameters_rounded_twice(bias, multiplier, shift, zero_point, low, high)
    got = run_lane(sums - bias[:, np.newaxis], parameters, True)
    np.testing.assert_array_equal(got, np.clip(product + zero_point, low, high))


def test_lane_rounds_twice_at_the_ends_of_each_window() -> None:
    """Products at and next to 1/2 ± 2^-(e + 1), for each shift e."""
    rows = []
    for shift in range(16):
        for whole in (0, 77):
            for distance in (shift - 1, shift, shift + 1):
                end = 1 << SCALE_FRACTION - 1 - max(distance, 0)
                half = 2 * whole + 1 << SCALE_FRACTION - 1
                rows += [(half + side + unit, shift) for side in (-end, end) for unit in (-1, 0, 1)]
    scales, shifts = np.array(rows).T
    bounds = np.full(scales.shape, 128 << 8 | 127 << 16 | 1 << ROUND_TWICE_BIT)
    words = [0 * scales, scales, scales >> 32, bounds | shifts << SECOND_SHIFT_BIT]
    parameters: Any = np.stack(words, axis=1).astype(np.int32)
    sums = np.stack([0 * scales + 1, 0 * scales - 1], axis=1)
    want = requantized(sums, *parameters.T[:, :, np.newaxis], rounds_twice=True)
    np.testing.assert_array_equal(run_lane(sums, parameters, True), want)


def test_bounds_may_be_in_any_order() -> None:
    """The result is min(max(v, low), high), for every order of the value and its bounds, and for
    ties.
    """
    rng = np.random.default_rng(11)
    count = 200
    low, high = rng.integers(-128, 128, (2, count))
    high = np.where(rng.random(count) < 0.2, low, high)
    zero_point = rng.integers(-128, 128, count)
    values = rng.integers(-300, 300, (count, SUMS))
    # Values equal to a bound, next to a bound, and beyond the width of the adder after the product.
    near = rng.integers(-1, 2, count)
    values[:, 0], values[:, 1] = low + near, high + near
    values[:, 2], values[:, 3] = 1 << 24, -(1 << 24)
    sums = values - np.where(abs(values) < 1 << 20, zero_point[:, np.newaxis], 0)
    scale = np.full(count, 1 << SCALE_FRACTION)
    bounds = zero_point % 256 | low % 256 << 8 | high % 256 << 16
    words = np.stack([0 * scale, scale, scale >> 32, bounds], axis=1)
    parameters: Any = words.astype(np.int32)
    want = np.minimum(np.maximum(values, low[:, np.newaxis]), high[:, np.newaxis])
    np.testing.assert_array_equal(run_lane(sums, parameters), want)
    np.testing.assert_array_equal(requantized(sums, *parameters.T[:, :, np.newaxis]), want)
    assert {"lhv", "lvh", "vlh", "hlv", "hvl", "vhl"} == {
        "".join(name for _, name in sorted(zip(row, "lhv", strict=True)))
        for row in zip(low.tolist(), high.tolist(), values[:, 4].tolist(), strict=True)
    }


def test_wide_sums_are_divided_by_powers_of_two_exactly() -> None:
    rng = np.random.default_rng(5)
    exponents = rng.integers(9, 24, 200)
    halves = (2 * rng.integers(-128, 128, (200, SUMS)) + 1) << (exponents - 1)[:, np.newaxis]
    # A sum next to a tie must not round like a tie, although 7 bits are dropped.
    sums = np.clip(halves + rng.integers(-1, 2, halves.shape), -(1 << 31), (1 << 31) - 1)
    scales = np.int64(1) << SCALE_FRACTION + 7 - exponents
    a, parameters, (zero_point, low, high) = with_bounds(sums, scales, rng)
    parameters[:, 3] |= WIDE
    want = np.clip(np.rint(sums.T / 2.0**exponents) + zero_point, low, high).T
    np.testing.assert_array_equal(run_lane(a, parameters), want)
