"""Requantization in NumPy, the layout of its parameters, and a check that a layer's results equal
float32 arithmetic.

The definition, one scalar at a time, is `amaranth_vta.sim.model.scalar.requantize`, which software
cannot import; `requantized` is checked against it in tests/sw/compiler/te/test_requantization.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.isa import (
    MULTIPLIED_WIDTH,
    ROUND_TWICE_BIT,
    SCALE_FRACTION,
    SCALE_WIDTH,
    SECOND_SHIFT_BIT,
    SECOND_SHIFT_WIDTH,
    WIDE_BIT,
)

Array = npt.NDArray[Any]
# The least sum that exceeds the width of the multiplier.
_LIMIT = 1 << MULTIPLIED_WIDTH - 1
_REST = 32 - MULTIPLIED_WIDTH
# The least scale that has 24 significant bits in fixed point, and the least that overflows it.
_LEAST_EXACT = 2.0 ** (24 - 1 - SCALE_FRACTION)
SCALE_END = 2.0 ** (SCALE_WIDTH - SCALE_FRACTION)


def requantized(
    value: Array, bias: Array, scale_low: Array, scale_high: Array, bounds: Array
) -> Array:
    """clip(rint(float32((value + bias) · scale)) + zero_point, low, high), int32.

    All are int32 and broadcast; the parameters are those of `requantization_parameters`. The sum
    wraps around, the product is exact, and both roundings are half to even. A sum of more than 25
    bits saturates; with the flag ``wide`` it is first divided by 2^7, with a sticky last bit. With
    the flag ``round_twice`` the product is rounded as `parameters_rounded_twice` says.
    """
    total = (value + bias).astype(np.int32).astype(np.int64)
    divided = total >> _REST | (total % (1 << _REST) > 0)
    total = np.where(bounds >> WIDE_BIT & 1 > 0, divided, total)
    scale = scale_low.astype(np.int64) % (1 << 32) | (
        scale_high.astype(np.int64) % (1 << SCALE_WIDTH - 32) << 32
    )
    factor = np.clip(total, -_LIMIT, _LIMIT - 1)
    rounded = _rounded(factor, scale, bounds)
    rounded = np.where(total >= _LIMIT, 1 << 20, np.where(total < -_LIMIT, -1 << 20, rounded))
    zero_point, low, high = (_signed_byte(bounds, number) for number in range(3))
    return np.clip(rounded + zero_point, low, high).astype(np.int32)


def _rounded(factor: Array, scale: Array, bounds: Array) -> Array:
    """``factor · scale / 2^43`` as an integer, rounded as the flag in ``bounds`` says; beyond ±511
    any value beyond ±511.
    """
    # The product in two parts; the lower part has 24 bits.
    lower = factor * (scale & (1 << 24) - 1)
    upper = factor * (scale >> 24) + (lower >> 24)
    lower &= (1 << 24) - 1
    whole = upper >> SCALE_FRACTION - 24
    # The fraction minus one half.
    less_half = (upper - (whole << SCALE_FRACTION - 24) << 24) + lower - (1 << SCALE_FRACTION - 1)
    twice = bounds >> ROUND_TWICE_BIT & 1 > 0
    if not twice.any():
        return whole + _up_by_float32(whole, less_half)
    up = _up_by_two_roundings(less_half, factor < 0, bounds)
    return whole + np.where(twice, up, _up_by_float32(whole, less_half))


def _up_by_float32(whole: Array, less_half: Array) -> Array:
    """Whether float32 arithmetic rounds up, for the fraction minus one half."""
    # The distance from 0 within which float32 rounds the fraction to one half.
    magnitude = np.abs(2 * whole + 1)
    # Just below 1/2 the distance is half as large, but either way the result is 0.
    binade = np.frexp(magnitude.astype(np.float64))[1] - 2
    reach = np.int64(1) << np.clip(SCALE_FRACTION - 24 + binade, 0, 40)
    return np.where(np.abs(less_half) <= reach, whole & 1, less_half > 0)


def _up_by_two_roundings(less_half: Array, negative: Array, bounds: Array) -> Array:
    """Whether two roundings, the second away from 0, round up."""
    shift = (bounds >> SECOND_SHIFT_BIT & (1 << SECOND_SHIFT_WIDTH) - 1).astype(np.int64)
    first = np.where(shift > 0, np.int64(1) << SCALE_FRACTION - 1 - shift, 0)
    return less_half >= np.where(negative, first, -first)


def requantization_parameters(
    bias: npt.ArrayLike, scale: npt.ArrayLike, zero_point: int, low: int, high: int
) -> Array:
    """Encode parameters as int32 (channels, 4): bias, scale in two words, and bounds of each
    channel.

    ``bias`` is int32 (channels,); ``scale`` is float32 (channels,) or a scalar, positive and less
    than 64, and is rounded to the nearest multiple of 2^-43; ``zero_point``, ``low`` and ``high``
    are int8. The bit layout is `amaranth_vta.hw.isa.REQUANTIZE_PARAMETERS`. If the scale is a power
    of two so small that sums of more than 25 bits have results within bounds, the flag ``wide`` is
    set, which handles these sums exactly. Raises `ValueError` for other arguments.
    """
    biases = np.asarray(bias)
    scales = np.broadcast_to(np.asarray(scale, np.float32), biases.shape).astype(np.float64)
    if not ((scales > 0) & (scales < SCALE_END)).all():
        raise ValueError(f"a scale is not positive and less than {SCALE_END:.0f}")
    wide = (np.frexp(scales)[0] == 0.5) & (scales * _LIMIT < 256)
    fixed = np.rint(np.ldexp(scales, SCALE_FRACTION + np.where(wide, _REST, 0))).astype(np.int64)
    flags = wide.astype(np.int64) << WIDE_BIT
    return packed_parameters(biases, fixed, (zero_point, low, high), flags)


def packed_parameters(
    bias: Array, scale: Array, bounds: tuple[int, int, int], flags: Array
) -> Array:
    """Parameters int32 (channels, 4) of scales in units of 2^-43 and flags in their places.

    ``bounds`` are the zero point, the least and the greatest result. Raises `ValueError` if they
    are not int8.
    """
    zero_point, low, high = bounds
    if not -128 <= low <= high <= 127 or not -128 <= zero_point <= 127:
        raise ValueError(
            f"zero point {zero_point} and bounds {low} to {high} are not int8, in this order"
        )
    packed = zero_point % 256 | low % 256 << 8 | high % 256 << 16
    words = (bias, scale, scale >> 32, packed | flags)
    return np.stack([word.astype(np.int32) for word in words], axis=-1)


def requantizes_as_float32(
    scale: npt.ArrayLike,
    zero_point: int,
    low: int,
    high: int,
    least: npt.ArrayLike,
    most: npt.ArrayLike,
) -> npt.NDArray[np.bool_]:
    """Whether REQUANTIZE equals float32 arithmetic for each channel: bool (channels,).

    The reference is clip(rint(float32(float32(sum) · scale)) + zero_point, low, high), as in
    onnxruntime's QLinearConv and QLinearMatMul for scale = s_x · s_w / s_y in float32. It is
    compared for every sum, bias included, from ``least`` to ``most``, each int64 (channels,) or a
    scalar, within 32 bits; for the other arguments see `requantization_parameters`.

    For sums of up to 24 bits the products are equal before rounding. Both functions are monotone in
    the sum, so larger sums agree if float32 arithmetic saturates for them. For the remaining
    channels each step is compared: the functions are equal if the least sum of every result is the
    same.
    """
    shape = np.broadcast_shapes((1,), *(np.shape(item) for item in (scale, least, most)))
    scales = np.broadcast_to(np.asarray(scale, np.float32), shape)
    begin, end = (np.broadcast_to(np.asarray(item, np.int64), shape) for item in (least, most))
    possible = (scales > 0) & (scales < SCALE_END)
    farthest = np.rint(np.minimum(scales, SCALE_END) * np.float32(_LIMIT))
    result = possible & (scales >= _LEAST_EXACT)
    result &= (end < _LIMIT) | (farthest + zero_point >= high)
    result &= (begin >= -_LIMIT) | (zero_point - farthest <= low)
    for channel in np.flatnonzero(possible & ~result):
        result[channel] = _steps_agree(
            scales[channel], zero_point, low, high, int(begin[channel]), int(end[channel])
        )
    return result


@dataclass(frozen=True)
class Steps:
    """A monotone step function of sums: ``lowest`` below the first of ``begins``; from sum
    ``begins[i]`` on the result is ``results[i]``. Both arrays are int64 (results,).
    """

    lowest: int
    results: Array
    begins: Array

    @property
    def highest(self) -> int:
        return int(self.results[-1]) if len(self.results) else self.lowest


def steps_of(wanted: Callable[[Array], Array], least: int, most: int) -> Steps:
    """Find by bisection the results of a monotone function of int64 sums from ``least`` to
    ``most``.
    """
    lowest, highest = wanted(np.array([least, most]))
    results = np.arange(lowest + 1, highest + 1)
    below = np.full(results.shape, least, np.int64)
    above = np.full(results.shape, most, np.int64)
    while (above - below > 1).any():
        middle = below + above >> 1
        reached = wanted(middle) >= results
        below, above = np.where(reached, below, middle), np.where(reached, middle, above)
    return Steps(int(lowest), results, above)


def float32_steps(scale: np.float32, bounds: tuple[int, int, int], least: int, most: int) -> Steps:
    """The results of float32 arithmetic for sums from ``least`` to ``most``.

    ``bounds`` are the zero point, the least and the greatest result.
    """
    zero_point, low, high = bounds

    def wanted(sums: Array) -> Array:
        with np.errstate(over="ignore"):  # to infinity, which is clipped
            whole = np.rint(sums.astype(np.float32) * scale).astype(np.float64)
        return np.clip(whole + zero_point, low, high).astype(np.int64)

    return steps_of(wanted, least, most)


def _steps_agree(
    scale: np.float32, zero_point: int, low: int, high: int, least: int, most: int
) -> bool:
    """Whether all steps of one channel agree."""
    parameters = requantization_parameters([0], scale, zero_point, low, high)[0]
    steps = float32_steps(scale, (zero_point, low, high), least, most)

    def got(total: Array) -> Array:
        return requantized(total.astype(np.int32), *parameters)

    if got(np.array([least, most])).tolist() != [steps.lowest, steps.highest]:
        return False
    reached, missed = got(steps.begins) >= steps.results, got(steps.begins - 1) < steps.results
    return bool(reached.all() and missed.all())


def _signed_byte(bits: Array, number: int) -> Array:
    return ((bits >> 8 * number) & 255 ^ 128) - 128
