"""Requantization as TensorFlow Lite's reference kernels define it: by an integer multiplier of 31
bits and a shift, rounded twice.

Definitions: `QuantizeMultiplier` in tensorflow/lite/kernels/internal/quantization_util.cc,
`MultiplyByQuantizedMultiplier` in tensorflow/lite/kernels/internal/common.h, and gemmlowp's
`SaturatingRoundingDoublingHighMul` and `RoundingDivideByPOT` in fixedpoint/fixedpoint.h. Shifts are
positive to the left, as there.

Both roundings together are one. A multiplication rounds t · M / 2^31 to the nearest integer, halves
up, and a right shift by e >= 1 rounds halves away from 0::

    floor((t · M + 2^(30 + e) + (2^30 if t >= 0 else -2^30)) / 2^(31 + e))

REQUANTIZE with the flag ``round_twice`` computes this if its scale, M · 2^(12 - e), is an integer.
"""

from __future__ import annotations

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
)

from .requantization import packed_parameters, requantized, steps_of

Array = npt.NDArray[Any]
_FRACTION = 31
_LIMIT = 1 << MULTIPLIED_WIDTH - 1
_MOST_SHIFT = (1 << SECOND_SHIFT_WIDTH) - 1
# Sums to which a zero point can be added within 32 bits.
_ROOM = (1 << 31) - 256


def quantized_multiplier(real: npt.ArrayLike) -> tuple[Array, Array]:
    """Multiplier and shift of real factors: real ≈ multiplier · 2^(shift - 31), int64 in the shape
    of ``real``.

    ``real`` is float64, not negative. A multiplier is 0 or from 2^30 to 2^31 - 1. Factors below
    2^-32 become 0, as in TensorFlow Lite.
    """
    fraction, exponent = np.frexp(np.asarray(real, np.float64))
    multiplier = np.floor(fraction * 2.0**_FRACTION + 0.5).astype(np.int64)
    shift = exponent.astype(np.int64)
    carried = multiplier == 1 << _FRACTION
    multiplier, shift = np.where(carried, multiplier >> 1, multiplier), shift + carried
    flushed = shift < -_FRACTION
    return np.where(flushed, 0, multiplier), np.where(flushed, 0, shift)


def multiply_by_quantized_multiplier(
    sums: npt.ArrayLike, multiplier: npt.ArrayLike, shift: npt.ArrayLike, twice: bool = True
) -> Array:
    """sums · multiplier · 2^(shift - 31), rounded twice: int64; the arguments broadcast. Unless
    ``twice``, rounded once, half away from 0, as FULLY_CONNECTED does.

    ``sums`` are int32, ``multiplier`` is from 0 to 2^31 - 1, and ``shift`` is from -31 to 31,
    positive to the left. A left shift wraps around within 32 bits.
    """
    values, factor, moved = (np.asarray(item, np.int64) for item in (sums, multiplier, shift))
    if not twice:
        product, places = values * factor, _FRACTION - moved
        return np.sign(product) * (np.abs(product) + (np.int64(1) << places >> 1) >> places)
    left, right = np.maximum(moved, 0), np.maximum(-moved, 0)
    shifted = (values << left).astype(np.int32).astype(np.int64)
    # SaturatingRoundingDoublingHighMul: C++ divides towards 0, so its nudge depends on the sign.
    product = shifted * factor
    nudged = product + np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    high = np.where(nudged >= 0, nudged >> _FRACTION, -(-nudged >> _FRACTION))
    # RoundingDivideByPOT.
    mask = (np.int64(1) << right) - 1
    threshold = (mask >> 1) + (high < 0)
    return (high >> right) + ((high & mask) > threshold)


def parameters_rounded_twice(
    bias: npt.ArrayLike,
    multiplier: npt.ArrayLike,
    shift: npt.ArrayLike,
    zero_point: int,
    low: int,
    high: int,
    second_shift: npt.ArrayLike | None = None,
) -> Array:
    """Encode parameters of a REQUANTIZE that rounds as `multiply_by_quantized_multiplier`: int32
    (channels, 4), as `requantization_parameters`. The machine needs extension ROUND_TWICE.

    ``bias`` is int32 (channels,); ``multiplier`` and ``shift`` are as from `quantized_multiplier`,
    (channels,) or scalars; ``zero_point``, ``low`` and ``high`` are int8. ``second_shift`` is the
    shift of the second rounding, 0 for none, by default the multiplier's. A scale with
    more than 43 bits of fraction is rounded: `requantizes_as_tflite` says whether results are
    equal. Raises `ValueError` for other arguments.
    """
    biases = np.asarray(bias)
    factor, moved = (
        np.broadcast_to(np.asarray(item, np.int64), biases.shape) for item in (multiplier, shift)
    )
    if not _is_encodable(factor, moved).all():
        raise ValueError(
            "a multiplier and its shift are no scale from 0 to less than "
            f"{1 << SCALE_WIDTH - SCALE_FRACTION}"
        )
    scale, second = _fixed_point(factor, moved)
    if second_shift is not None:
        second = np.broadcast_to(np.asarray(second_shift, np.int64), biases.shape)
    flags = 1 << ROUND_TWICE_BIT | second << SECOND_SHIFT_BIT
    return packed_parameters(biases, scale, (zero_point, low, high), flags)


def parameters_as_tflite(
    bias: npt.ArrayLike,
    multiplier: npt.ArrayLike,
    shift: npt.ArrayLike,
    bounds: tuple[int, int, int],
    least: npt.ArrayLike,
    most: npt.ArrayLike,
    twice: bool = True,
) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Parameters int32 (channels, 4) with which REQUANTIZE equals TensorFlow Lite's reference
    kernels, and for which channels that is proved: bool (channels,).

    ``bounds`` are the zero point, the least and the greatest result; for the other arguments see
    `parameters_rounded_twice` and `requantizes_as_tflite`. Channels whose multiplier does not do
    get any other parameters that have the same results for all sums from ``least`` to ``most``.
    Unless ``twice``, the kernel rounds once.
    """
    biases = np.asarray(bias, np.int64)
    factor, moved, begin, end = (
        np.broadcast_to(np.asarray(item, np.int64), biases.shape)
        for item in (multiplier, shift, least, most)
    )
    proved = np.zeros(biases.shape, np.bool_)
    parameters = parameters_rounded_twice(biases, 0, 0, *bounds)
    # A second rounding of almost no width makes the first one round ties away from 0.
    for second in (None,) if twice else (0, _MOST_SHIFT):
        equal = requantizes_as_tflite(factor, moved, *bounds, begin, end, twice, second)
        new = np.flatnonzero(equal & ~proved)
        parameters[new] = parameters_rounded_twice(
            biases[new], factor[new], moved[new], *bounds, second
        )
        proved |= equal
    for channel in np.flatnonzero(~proved & (begin >= -_ROOM) & (end <= _ROOM)):
        found = _equivalent(
            int(factor[channel]),
            int(moved[channel]),
            bounds,
            int(begin[channel]),
            int(end[channel]),
            twice,
        )
        if found is not None:
            found[0] += biases[channel]
            parameters[channel], proved[channel] = found.astype(np.int32), True
    return parameters, proved


def parameters_of_scale(
    bias: npt.ArrayLike, scale: npt.ArrayLike, second_shift: int, bounds: tuple[int, int, int]
) -> Array:
    """Parameters int32 (channels, 4) of a REQUANTIZE by ``scale``, in units of 2^-43, with a second
    rounding unless ``second_shift`` is 0. ``bias`` and ``scale`` are integers, or one per
    channel."""
    biases, scales = (np.atleast_1d(np.asarray(item, np.int64)) for item in (bias, scale))
    flags = np.full(biases.shape, 1 << ROUND_TWICE_BIT | second_shift << SECOND_SHIFT_BIT)
    return packed_parameters(biases, scales, bounds, flags)


def requantizes_as_tflite(
    multiplier: npt.ArrayLike,
    shift: npt.ArrayLike,
    zero_point: int,
    low: int,
    high: int,
    least: npt.ArrayLike,
    most: npt.ArrayLike,
    twice: bool = True,
    second_shift: int | None = None,
) -> npt.NDArray[np.bool_]:
    """Whether REQUANTIZE with `parameters_rounded_twice` equals TensorFlow Lite's reference kernels
    for each channel: bool (channels,).

    The reference is clip(`multiply_by_quantized_multiplier` + zero_point, low, high), compared for
    every sum, bias included, from ``least`` to ``most``, each int64 (channels,) or a scalar.
    Unless ``twice``, the kernel rounds once.

    If the scale is exact, the products are equal for sums of up to 25 bits. Both functions are
    monotone in the sum, so larger sums agree if the reference saturates for the least of them. For
    the remaining channels each step is compared.
    """
    arguments = (multiplier, shift, least, most)
    shape = np.broadcast_shapes((1,), *(np.shape(item) for item in arguments))
    factor, moved, begin, end = (
        np.broadcast_to(np.asarray(item, np.int64), shape) for item in arguments
    )
    result = _is_encodable(factor, moved)
    # Neither a left shift nor the addition of a zero point wraps around.
    room = _ROOM >> np.maximum(moved, 0)
    result &= (begin >= -room) & (end <= room)
    above = multiply_by_quantized_multiplier(_LIMIT, factor, moved, twice) + zero_point
    below = multiply_by_quantized_multiplier(-_LIMIT - 1, factor, moved, twice) + zero_point
    result &= (end < _LIMIT) | (above >= high)
    result &= (begin >= -_LIMIT) | (below <= low)
    lost = np.clip(-moved - _EXACT_SHIFT, 0, _FRACTION)
    inexact = (factor & (1 << lost) - 1 > 0) | (moved < -_MOST_SHIFT)
    at = np.flatnonzero(result & (inexact | (not twice)))
    if at.size:
        within = np.maximum(begin[at], -_LIMIT), np.minimum(end[at], _LIMIT - 1)
        bounds = zero_point, low, high
        result[at] = _steps_agree(factor[at], moved[at], bounds, *within, twice, second_shift)
    return result


# The right shift up to which a scale has no more bits of fraction than its fixed point.
_EXACT_SHIFT = SCALE_FRACTION - _FRACTION


def _is_encodable(multiplier: Array, shift: Array) -> npt.NDArray[np.bool_]:
    fits = (multiplier >= 0) & (multiplier < 1 << _FRACTION) & (shift >= -_FRACTION)
    return fits & (shift <= SCALE_WIDTH - SCALE_FRACTION)


def _fixed_point(multiplier: Array, shift: Array) -> tuple[Array, Array]:
    """Scales in units of 2^-43, rounded to the nearest, and the shifts of the second rounding."""
    up, down = np.maximum(shift + _EXACT_SHIFT, 0), np.maximum(-shift - _EXACT_SHIFT, 0)
    scale = (multiplier << up) + ((np.int64(1) << down) >> 1) >> down
    return scale, np.clip(-shift, 0, _MOST_SHIFT)


def _steps_agree(
    multiplier: Array,
    shift: Array,
    bounds: tuple[int, int, int],
    least: Array,
    most: Array,
    twice: bool,
    second_shift: int | None,
) -> npt.NDArray[np.bool_]:
    """Whether all steps agree, for each channel."""
    zero_point, low, high = bounds
    parameters = parameters_rounded_twice(
        np.zeros_like(shift), multiplier, shift, *bounds, second_shift
    )

    def agree(sums: Array, at: Any = slice(None)) -> tuple[Array, npt.NDArray[np.bool_]]:
        """The reference for ``sums`` (channels, any) of the channels ``at``, and whether all of a
        channel are equal.
        """
        product = multiply_by_quantized_multiplier(
            sums, multiplier[at, None], shift[at, None], twice
        )
        want = np.clip(product + zero_point, low, high)
        got = requantized(sums.astype(np.int32), *parameters[at].T[..., None])
        return want, (got == want).all(axis=1)

    ends, result = agree(np.stack([least, most], axis=1))
    at = np.flatnonzero(result & (ends[:, 0] < ends[:, 1]))
    # The first sum of a result is less than two from a product of half a unit less: roundings move
    # it by up to 2^30 / multiplier, which is 1 at most, and it is a whole number.
    halves = np.arange(low + 1, high + 1) - zero_point - 0.5
    middle = halves * np.ldexp(1 / multiplier[at], _FRACTION - shift[at])[:, None]
    near = np.clip(np.rint(middle), -_LIMIT, _LIMIT).astype(np.int64)
    for distance in range(-2, 3) if at.size else ():
        sums = np.clip(near + distance, least[at, None], most[at, None])
        result[at] &= agree(sums, at)[1]
    return result


def scale_of_steps(before: Array, begins: Array, results: Array, second_shift: int) -> int | None:
    """The least scale, in units of 2^-43, for which REQUANTIZE with this ``second_shift`` reaches
    each of the ``results``, less the zero point, at the sum in ``begins``, bias included, and not
    at the sum in ``before``; None if there is none. All are int64 (steps,).

    A sum t reaches the result n if t · scale >= (n - 1/2) · 2^43, less the second rounding.
    """
    first = (1 << SCALE_FRACTION - 1 - second_shift) if second_shift else 0
    least, most = 1, (1 << SCALE_WIDTH) - 1
    for sums, reached in ((begins, True), (before, False)):
        wanted = (2 * results - 1 << SCALE_FRACTION - 1) - np.where(sums >= 0, first, -first)
        at_zero = sums == 0
        if ((wanted[at_zero] <= 0) != reached).any():
            return None
        positive, negative = sums > 0, sums < 0
        # Divided by a positive sum, rounded up: the least scale that reaches the result.
        enough = -(-wanted[positive] // sums[positive])
        # Divided by a negative sum, rounded down: the greatest scale that does.
        limit = wanted[negative] // sums[negative]
        if reached:
            least = max([least, *enough.tolist()])
            most = min([most, *limit.tolist()])
        else:
            most = min([most, *(enough - 1).tolist()])
            least = max([least, *(limit + 1).tolist()])
    return least if least <= most else None


def _equivalent(
    multiplier: int,
    shift: int,
    bounds: tuple[int, int, int],
    least: int,
    most: int,
    twice: bool,
) -> Array | None:
    """Parameters without bias, int64, that have the results of a multiplier for all sums from
    ``least`` to ``most``; None if none are found.

    Step k, at the sum b[k], is where the scaled sum reaches n - 1/2, for the integers n from any
    first one on. A bias moves the steps, a zero point the results::

        scale · (b[k] + bias) >= (n[k] - 1/2) · 2^43 > scale · (b[k] + bias - 1)

    For each of some first integers and biases this is an interval of scales.
    """
    zero_point, low, high = bounds

    def wanted(sums: Array) -> Array:
        product = multiply_by_quantized_multiplier(sums, multiplier, shift, twice)
        return np.clip(product + zero_point, low, high)

    steps = steps_of(wanted, least, most)
    count = len(steps.begins)
    if count == 0:
        return _with_one_rounding(0, 0, (steps.lowest, steps.lowest, steps.lowest))
    distance = (steps.begins[-1] - steps.begins[0]) / (count - 1) if count > 1 else 2.0
    first = np.arange(1, min(steps.lowest + 129, 255 - count) + 1)[:, None]
    bias = np.rint((first - 0.5) * distance).astype(np.int64) - steps.begins[0] + np.arange(-2, 3)
    begins = steps.begins + bias[..., None]
    halves = (2 * (first + np.arange(count)) - 1 << SCALE_FRACTION - 1)[:, None]
    least_scale = -(-halves // np.maximum(begins, 1)).min(axis=-1)
    end = -(-halves // np.maximum(begins - 1, 1)).max(axis=-1)
    fits = (begins > 1).all(axis=-1) & (begins < _LIMIT).all(axis=-1) & (least_scale < end)
    fits &= (end <= 1 << SCALE_WIDTH) & (least + bias >= -_ROOM) & (most + bias <= _ROOM)
    if not fits.any():
        return None
    at = tuple(np.argwhere(fits)[0])
    zero = steps.lowest + 1 - int(first[at[0], 0])
    found = _with_one_rounding(
        int(bias[at]), int(least_scale[at]), (zero, steps.lowest, steps.highest)
    )
    ends = np.concatenate([steps.begins - 1, steps.begins, [least, most]])
    equal = requantized(ends.astype(np.int32), *found.astype(np.int32)) == wanted(ends)
    return found if equal.all() else None


def _with_one_rounding(bias: int, scale: int, bounds: tuple[int, int, int]) -> Array:
    return parameters_of_scale(bias, scale, 0, bounds)[0].astype(np.int64)
