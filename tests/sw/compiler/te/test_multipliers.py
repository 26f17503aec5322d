"""Requantization with two roundings, and the proof that REQUANTIZE equals TensorFlow Lite's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.sim.model import scalar
from amaranth_vta.sw.compiler import te
from tests.support.seeds import each_seed

Array = npt.NDArray[Any]
TOP = 1 << 24
BOUNDS = (5, -128, 127)


def quantized(real: float) -> tuple[int, int]:
    """QuantizeMultiplier, one number at a time."""
    fraction, shift = math.frexp(real)
    multiplier = math.floor(fraction * 2**31 + 0.5)
    if multiplier == 2**31:
        multiplier, shift = multiplier // 2, shift + 1
    return (multiplier, shift) if shift >= -31 else (0, 0)


def multiplied(value: int, multiplier: int, shift: int) -> int:
    """MultiplyByQuantizedMultiplier, as gemmlowp writes its two steps."""
    product = value * 2 ** max(shift, 0) * multiplier
    nudge = 2**30 if product >= 0 else 1 - 2**30
    high = int(math.copysign(1, product + nudge)) * (abs(product + nudge) // 2**31)
    exponent = max(-shift, 0)
    mask = 2**exponent - 1
    threshold = (mask >> 1) + (1 if high < 0 else 0)
    return (high >> exponent) + (1 if high & mask > threshold else 0)


def multipliers(rng: np.random.Generator, count: int) -> Array:
    ends = rng.choice([1 << 30, (1 << 30) + 1, (1 << 31) - 1, 3 << 29], count)
    return np.where(rng.random(count) < 0.1, ends, rng.integers(1 << 30, 1 << 31, count))


def around_steps(multiplier: Array, shift: Array, results: Array) -> Array:
    """Sums (channels, any) around the first of each of ``results``."""
    halves = (results - 0.5) * np.ldexp(1 / multiplier, 31 - shift)[:, None]
    sums = np.rint(halves)[..., None] + np.arange(-3, 4)
    return np.clip(sums, -TOP, TOP - 1).astype(np.int64).reshape(len(multiplier), -1)


def reference(sums: Array, multiplier: Array, shift: Array, bounds: tuple[int, int, int]) -> Array:
    product = te.multiply_by_quantized_multiplier(sums, multiplier[:, None], shift[:, None])
    return np.clip(product + bounds[0], *bounds[1:])


def test_factors_are_quantized_as_defined() -> None:
    rng = np.random.default_rng(1)
    some = [0.0, 1.0, 0.5, 1 - 2.0**-40, 2.0**-32, 2.0**-33, 2.0**-32 * (1 - 2.0**-40), 37.5]
    real = np.concatenate([some, np.exp2(rng.uniform(-36, 6, 2000))])
    found = te.quantized_multiplier(real)
    assert list(zip(*(part.tolist() for part in found), strict=True)) == [*map(quantized, real)]


def test_products_have_both_roundings() -> None:
    rng = np.random.default_rng(2)
    count = 20_000
    multiplier, shift = multipliers(rng, count), rng.integers(-31, 7, count)
    sums = around_steps(multiplier, shift, rng.integers(-300, 300, (count, 1)))[:, rng.integers(7)]
    want = [*map(multiplied, sums.tolist(), multiplier.tolist(), shift.tolist())]
    assert te.multiply_by_quantized_multiplier(sums, multiplier, shift).tolist() == want
    # Halves of both signs, for each shift: the last rounding is away from 0.
    assert te.multiply_by_quantized_multiplier([-6, -2, 2, 6], 1 << 30, -1).tolist() == [
        -2,
        -1,
        1,
        2,
    ]
    assert te.multiply_by_quantized_multiplier([-3, -1, 1, 3], 1 << 30, 0).tolist() == [-1, 0, 1, 2]


@each_seed(range(2))
def test_exact_scales_round_as_tflite_does(seed: int) -> None:
    """The proof of the rounding: sums around all steps of random channels, with every shift."""
    rng = np.random.default_rng(seed)
    shift = np.repeat(np.arange(-12, 7), 40)
    multiplier = multipliers(rng, shift.size)
    sums = around_steps(multiplier, shift, np.arange(-140, 140))
    parameters = te.parameters_rounded_twice(np.zeros_like(shift), multiplier, shift, *BOUNDS)
    got = te.requantized(sums.astype(np.int32), *parameters.T[..., None])
    np.testing.assert_array_equal(got, reference(sums, multiplier, shift, BOUNDS))
    assert te.requantizes_as_tflite(multiplier, shift, *BOUNDS, -TOP, TOP - 1).all()


@each_seed(range(2))
def test_the_proof_says_what_all_sums_of_a_range_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = []
    for shift in (*range(-20, -9), 0, 3):
        multiplier = multipliers(rng, 1)
        low, high = sorted(rng.integers(-128, 128, 2).tolist())
        bounds = int(rng.integers(-128, 128)), low, high
        middle = int(rng.choice([0, TOP, -TOP, round(rng.uniform(-9, 9) * 2.0**-shift)]))
        sums = np.arange(middle - 100_000, middle + 100_000)
        where = multiplier, np.array([shift])
        parameters = te.parameters_rounded_twice([0], *where, *bounds)[0]
        want = reference(sums[None], *where, bounds)[0]
        equal = np.array_equal(te.requantized(sums.astype(np.int32), *parameters), want)
        found.append(equal)
        assert te.requantizes_as_tflite(*where, *bounds, sums[0], sums[-1]) == equal
        others, proved = te.parameters_as_tflite([7], *where, bounds, sums[0], sums[-1])
        assert proved[0] >= equal
        if proved[0]:
            got = te.requantized((sums - 7).astype(np.int32), *others[0])
            np.testing.assert_array_equal(got, want)
    assert 3 < sum(found) < 13


def test_sums_beyond_the_width_of_the_multiplier_must_saturate() -> None:
    def proved(shift: int, least: int, most: int) -> bool:
        return bool(te.requantizes_as_tflite(1 << 30, shift, *BOUNDS, least, most)[0])

    assert proved(-12, -TOP, TOP - 1)
    assert proved(-12, -(1 << 30), 1 << 30)
    # 2^24 · 2^-17 is 128.
    assert proved(-15, -1000, 1 << 30)
    assert not proved(-17, -1000, TOP)
    assert not proved(-17, -TOP - 1, 1000)
    # A left shift wraps around.
    assert proved(6, -(1 << 24), 1 << 24)
    assert not proved(6, -1000, 1 << 26)
    assert not proved(7, -1, 1)


def test_nearly_dead_channels_get_equivalent_parameters() -> None:
    """One result, a few, and a bias near 2^30, as in published networks."""
    channels = [
        *[(1320764593, -27, 1073741760, 1073741760), (0, 0, 1073741760, 1073741760)],
        *[(1565063334, -20, 26480370, 26636685), (2116528314, -16, 573676, 749116)],
        *[(1941314197, -16, -939409, -410889), (1700000000, -18, -300_000, 300_000)],
    ]
    multiplier, shift, least, most = np.array(channels).T
    bias = np.arange(len(channels)) - (1 << 29)
    parameters, proved = te.parameters_as_tflite(bias, multiplier, shift, BOUNDS, least, most)
    assert proved[:5].all()
    sums = np.linspace(least, most, 100_000, axis=1).astype(np.int64)
    got = te.requantized((sums - bias[:, None]).astype(np.int32), *parameters.T[..., None])
    want = reference(sums, multiplier, shift, BOUNDS)
    assert (got == want).all(axis=1)[proved].all()
    assert [len(np.unique(row)) for row in want] == [1, 1, 2, 3, 8, 3]


def test_parameters_are_checked() -> None:
    for arguments in (((1 << 30), 7), (1 << 31, 0), (-1, 0), (1 << 30, -32)):
        with pytest.raises(ValueError, match="no scale from 0 to less than 64"):
            te.parameters_rounded_twice([0], *arguments, *BOUNDS)
    with pytest.raises(ValueError, match="are not int8, in this order"):
        te.parameters_rounded_twice([0], 1 << 30, 0, 5, 9, 8)


def test_the_compiler_rounds_twice_as_the_instruction_set_defines() -> None:
    rng = np.random.default_rng(7)
    words = rng.integers(-1 << 31, 1 << 31, (5, 10_000)) >> rng.integers(0, 32, (5, 10_000))
    words[3, ::2] = 0
    words[4] &= (1 << 24) - 1
    # All flags and shifts, including ignored ones.
    words[4] |= rng.integers(0, 1 << 7, 10_000) << 24
    got = te.requantized(*words.astype(np.int32))
    want = [scalar.requantize(*lane, rounds_twice=True) for lane in words.T.tolist()]
    np.testing.assert_array_equal(got, want)


def test_products_about_a_half_round_twice_as_the_instruction_set_defines() -> None:
    halves = np.array([2 * n + 1 for n in (-2, -1, 0, 1, 7, 40)]) << 42
    powers = 1 << np.arange(24, 43)
    offsets = np.concatenate([[0], powers - 1, powers, powers + 1])
    product = np.add.outer(halves, np.concatenate([offsets, -offsets])).reshape(-1)
    sign, scale = np.sign(product), np.abs(product)
    for shift in range(16):
        bounds = np.full(scale.shape, 128 << 8 | 127 << 16 | 1 << 25 | shift << 26)
        words = np.stack([sign, 0 * sign, scale, scale >> 32, bounds])
        want = [scalar.requantize(*lane, rounds_twice=True) for lane in words.T.tolist()]
        np.testing.assert_array_equal(te.requantized(*words.astype(np.int32)), want)
