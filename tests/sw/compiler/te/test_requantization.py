"""Requantization against float32 arithmetic, and the proof that the two are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.sim.model import scalar
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.te.requantization import requantizes_as_float32
from tests.support.seeds import each_seed

Array = npt.NDArray[Any]
TOP = 1 << 24


def by_float32(sums: Array, scale: Any, zero_point: int, low: int, high: int) -> Array:
    whole = np.rint(sums.astype(np.float32) * np.float32(scale)).astype(np.float64)
    return np.clip(whole + zero_point, low, high)


def on_the_machine(sums: Array, scale: Any, zero_point: int, low: int, high: int) -> Array:
    parameters = te.requantization_parameters([0], scale, zero_point, low, high)[0]
    return te.requantized(sums.astype(np.int32), *parameters)


def scales(rng: np.random.Generator, count: int, least: float, most: float) -> Array:
    found = np.exp2(rng.uniform(least, most, count)).astype(np.float32)
    return np.where(rng.random(count) < 0.2, np.exp2(np.rint(np.log2(found))), found)


def test_layers_as_they_are_usually_are_proved() -> None:
    rng = np.random.default_rng(1)
    some = scales(rng, 20_000, -20, 5.4)
    # Sums within bounds have at most 24 bits.
    most = np.where(some * TOP > 300, 1 << 30, TOP - 1)
    assert requantizes_as_float32(some, 17, -128, 127, -most, most).all()


@each_seed(range(3))
def test_the_proof_says_what_all_sums_of_a_range_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Scales below about 2^-20 have fewer than 24 bits in fixed point, which moves some steps.
    found = []
    for scale in scales(rng, 40, -26, -18):
        low, high = sorted(rng.integers(-128, 128, 2).tolist())
        zero_point = int(rng.integers(-128, 128))
        middle = int(np.clip(rng.integers(-9, 9) / scale, -TOP * 8, TOP * 8))
        middle = int(rng.choice([middle, TOP, -TOP]))
        sums = np.arange(middle - 100_000, middle + 100_000)
        how = (scale, zero_point, low, high)
        equal = np.array_equal(by_float32(sums, *how), on_the_machine(sums, *how))
        found.append(equal)
        assert requantizes_as_float32(*how, sums[0], sums[-1]) == equal, how
    assert 5 < sum(found) < 35


def test_a_channel_whose_result_differs_is_found() -> None:
    scale = np.full(8, 2.0**-9 * 1.37, np.float32)
    # In fixed point it is 2^-21, and 3 << 20 a tie.
    scale[5] = np.nextafter(np.float32(2.0**-21), np.float32(0))
    proved = requantizes_as_float32(scale, 0, -128, 127, -TOP + 1, TOP - 1)
    sums = np.arange(3 << 20) + (1 << 20)
    for channel in (4, 5):
        how = (scale[channel], 0, -128, 127)
        same = np.array_equal(by_float32(sums, *how), on_the_machine(sums, *how))
        assert same == proved[channel]
    assert proved.tolist() == [True] * 5 + [False] + [True] * 2
    # A smaller range without differences; a scale that is too large; sums beyond 24 bits.
    assert requantizes_as_float32(scale[5], 0, -128, 127, -1000, 1000)
    assert not requantizes_as_float32(64.0, 0, -128, 127, -1, 1)
    assert requantizes_as_float32(0.01, 0, -128, 127, -(1 << 31), (1 << 31) - 1)
    assert not requantizes_as_float32(3e-6, 0, -128, 127, -(1 << 31), (1 << 31) - 1)


@pytest.mark.parametrize("exponent", range(-30, 6))
def test_powers_of_two_are_exact_for_all_sums(exponent: int) -> None:
    rng = np.random.default_rng(exponent + 30)
    halves = np.rint((rng.integers(-140, 140, 20_000) + 0.5) / 2.0**exponent)
    sums = np.clip(halves + rng.integers(-1, 2, halves.size), -(1 << 31), (1 << 31) - 1)
    # The division is exact, and halves are rounded to even.
    want = np.clip(np.rint(sums * 2.0**exponent) - 5, -128, 127)
    got = on_the_machine(sums.astype(np.int64), 2.0**exponent, -5, -128, 127)
    np.testing.assert_array_equal(got, want)
    assert requantizes_as_float32(2.0**exponent, -5, -128, 127, -TOP, TOP)


def test_the_least_scales_give_the_zero_point() -> None:
    assert on_the_machine(np.array([1 << 23, -1]), 1e-20, 3, -128, 127).tolist() == [3, 3]
    assert requantizes_as_float32(1e-20, 3, -128, 127, -TOP + 1, TOP - 1)


def equal_to_the_definition(words: Array) -> Array:
    """Results for (5, lanes): accumulator, bias, scale in two words, bounds."""
    got = te.requantized(*words.astype(np.int32))
    want = [scalar.requantize(*lane, rounds_twice=True) for lane in words.T.tolist()]
    np.testing.assert_array_equal(got, want)
    return got


def test_the_compiler_requantizes_as_the_instruction_set_defines() -> None:
    rng = np.random.default_rng(7)
    # Words of every magnitude, to reach all limits of sums, scales and remainders.
    words = rng.integers(-1 << 31, 1 << 31, (5, 10_000)) >> rng.integers(0, 32, (5, 10_000))
    # Every other scale is as small as in real layers: sums within reach of the bounds.
    words[3, ::2] = 0
    got = equal_to_the_definition(words)
    assert ((got != words[4] << 16 >> 24) & (got != words[4] << 8 >> 24)).sum() > 1000


def test_products_about_a_half_round_as_the_instruction_set_defines() -> None:
    # Scales of n + 1/2, and scales that differ from them by less and by more than float32 resolves.
    halves = np.array([2 * n + 1 for n in (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63)]) << 42
    powers = 1 << np.arange(29)
    moved = np.concatenate([[0], powers - 1, powers, powers + 1])
    scale = np.add.outer(halves, np.concatenate([moved, -moved])).reshape(-1)
    bounds = np.full(scale.shape, 128 << 8 | 127 << 16)
    zeros = np.zeros_like(scale)
    for sign in (1, -1):
        words = np.stack([zeros, zeros + sign, scale, scale >> 32, bounds])
        equal_to_the_definition(words)


def test_wide_sums_keep_their_remainder_as_the_instruction_set_defines() -> None:
    sums = np.arange(-2000, 2000)
    scale, wide = np.full_like(sums, 1 << 41), np.full_like(sums, 128 << 8 | 127 << 16 | 1 << 24)
    zeros = np.zeros_like(sums)
    equal_to_the_definition(np.stack([sums, zeros, scale, scale >> 32, wide]))
