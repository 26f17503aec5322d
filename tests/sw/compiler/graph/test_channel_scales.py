"""Parameters of nearly dead channels against float32 arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.graph.channel_scales import channel_parameters
from amaranth_vta.sw.compiler.te.requantization import float32_steps
from tests.support.seeds import each_seed

BOUNDS = (7, -100, 90)
INT32 = np.iinfo(np.int32)
Bounds = tuple[int, int, int]


def assert_missing(scale: float, bounds: Bounds, least: int, most: int, bias: int = 0) -> None:
    """Test that no parameters are found for biased sums from ``least`` to ``most``."""
    limits = np.array([least]), np.array([most])
    scales = np.array([scale], np.float32)
    assert channel_parameters(np.array([bias]), scales, bounds, *limits)[1] == [0]


def by_float32(sums: Any, scale: Any, bounds: Bounds = BOUNDS) -> Any:
    zero_point, low, high = bounds
    with np.errstate(over="ignore"):
        whole = np.rint(sums.astype(np.float32) * np.float32(scale)).astype(np.float64)
    return np.clip(whole + zero_point, low, high)


def assert_equal(scale: float, bias: int, reach: int, bounds: Bounds = BOUNDS) -> None:
    """Test sums within ``reach`` of the bias: at both ends, at random, and around each step."""
    least, most = np.array([bias - reach]), np.array([bias + reach])
    scales = np.array([scale], np.float32)
    found, missing = channel_parameters(np.array([bias]), scales, bounds, least, most)
    assert missing == []
    parameters = found[0]
    halves = (np.arange(-120, 120) + 0.5) / float(scales[0]) if scale > 0 else np.zeros(1)
    near = np.rint(halves[np.abs(halves) < 2**40]).astype(np.int64)[:, None] + np.arange(-2, 3)
    sums = np.concatenate(
        [near.ravel(), np.random.default_rng(0).integers(least, most, 5000), least, most]
    )
    sums = sums[(sums >= least) & (sums <= most)]
    # Compare sums after they wrap around to 32 bits.
    sums = sums.astype(np.int32).astype(np.int64)
    products = (sums - bias).astype(np.int32)
    expected = by_float32(sums, scale, bounds)
    np.testing.assert_array_equal(te.requantized(products, *parameters), expected)


@pytest.mark.parametrize("scale", [0.0, 1e-45, 2e-34, 1e-12, 2e-9])
@pytest.mark.parametrize("bias", [0, -1, 60_000_000, -186_000_000, INT32.max - 5_000_000])
def test_a_dead_channel_has_its_one_result(scale: float, bias: int) -> None:
    assert_equal(scale, bias, 900_000)


@each_seed(range(20))
def test_a_step_far_from_zero_is_where_float32_has_it(seed: int) -> None:
    """Beyond 2^24, float32 represents only some of the sums, which moves the step."""
    rng = np.random.default_rng(seed)
    scale, step = 10.0 ** rng.uniform(-8, -6), rng.integers(-80, 70) + 0.5
    bias = int(np.clip(step / scale, -1.9e9, 1.9e9) + rng.integers(-90_000, 90_000))
    assert_equal(scale, bias, 100_000)


def test_sums_that_wrap_wrap_as_those_of_onnx_runtime() -> None:
    assert_equal(1e-12, INT32.max - 100, 1000)
    assert_equal(0.01, INT32.max - 100, 1000)


@pytest.mark.parametrize("bias", [INT32.max, INT32.max - 100, INT32.min, INT32.min + 100])
@pytest.mark.parametrize("scale", [5e-10, 7.3e-10, 2.7e-9, 1.2e-8])
def test_sums_at_the_limit_of_32_bits_have_a_result_on_either_side(scale: float, bias: int) -> None:
    assert_equal(scale, bias, 1000)
    assert_equal(scale, bias, 2_000_000)


@pytest.mark.parametrize("is_low", [True, False])
@pytest.mark.parametrize("inside", [1, 0, -1])
def test_a_step_is_moved_only_as_far_as_all_sums_stay_within_32_bits(
    is_low: bool, inside: int
) -> None:
    """One bound is the zero point, so there is a single step, which the bias is moved to. The
    farthest sum wraps around to the other side of the step, or just does not.
    """
    scale, bounds = 5e-10, (7, 7, 90) if is_low else (7, -100, 7)
    begin = int(float32_steps(np.float32(scale), bounds, INT32.min, INT32.max).begins[0])
    limit = int(INT32.min if is_low else INT32.max) - (1 - begin)
    farthest = limit + (inside if is_low else -inside)
    near = begin + (5 if is_low else -5)
    near += (farthest - near) % 2
    middle, reach = (farthest + near) // 2, abs(farthest - near) // 2
    if inside < 0:
        assert_missing(scale, bounds, middle - reach, middle + reach, middle)
    else:
        assert_equal(scale, middle, reach, bounds)


WRAPPED = 1 << 32


@pytest.mark.parametrize(
    ("bounds", "least", "most"),
    [
        # As many sums as 32 bits have: all results occur.
        (BOUNDS, 5, 5 + WRAPPED - 1),
        (BOUNDS, 5, 5 + WRAPPED),
        # Two ranges on the same side of 0, and the step between them.
        ((7, -100, 7), -500_000_000, -1_200_000_000 + WRAPPED),
        ((7, 7, 90), 1_200_000_000, 500_000_000 + WRAPPED),
        # A step within the part on one side of 0.
        ((7, 7, 90), 500_000_000, -1_500_000_000 + WRAPPED),
        ((7, -100, 7), 1_500_000_000, -500_000_000 + WRAPPED),
    ],
)
def test_sums_that_wrap_onto_too_many_results_are_refused(
    bounds: Bounds, least: int, most: int
) -> None:
    assert_missing(5e-10, bounds, least, most)


def test_two_results_are_at_most_as_far_apart_as_a_scale_goes() -> None:
    scale = 32 / (1 << 31)
    assert_equal(scale, INT32.max, 1000, (7, 7 - 31, 90))
    assert_missing(scale, (7, 7 - 32, 90), INT32.max - 1000, INT32.max + 1000, INT32.max)


def test_a_scale_beyond_fixed_point_has_no_parameters() -> None:
    assert_missing(80, BOUNDS, -9, 9)
