"""Constants that make the machine reproduce ONNX Runtime's float32 results bit for bit.

Some functions list ONNX Runtime's results for all operand values; the others search for a
`FixedPoint` that gives all of these results. Searches are memoized, since networks repeat their
scales.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, wraps
from typing import ParamSpec

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import SECOND_SHIFT_WIDTH
from amaranth_vta.sw.compiler import te

from .corrections import corrected_sum
from .fixed_point import Array, FixedPoint, NotExact, Quantized, fixed_point
from .integer_rounding import IntegerRounding

# All int8 values.
BYTE = np.arange(-128, 128)
# Maximum number of sums that are checked.
_MAX_SUMS = 1 << 24
_SEARCHES = 1024
_SECOND_SHIFTS = 1 << SECOND_SHIFT_WIDTH
# Scales to try, in float32 ulps from the exact quotient: float32 arithmetic rounds several times.
_NEIGHBOURS = sorted(range(-6, 7), key=abs)

Arguments = ParamSpec("Arguments")


def _memoized(search: Callable[Arguments, FixedPoint]) -> Callable[Arguments, FixedPoint]:
    """Memoize a search, including failures and their reasons."""

    @lru_cache(_SEARCHES)
    def outcome(*args: Arguments.args, **kwargs: Arguments.kwargs) -> FixedPoint | str:
        try:
            return search(*args, **kwargs)
        except NotExact as problem:
            return str(problem)

    remembered: Callable[..., FixedPoint | str] = outcome

    @wraps(search)
    def found(*args: Arguments.args, **kwargs: Arguments.kwargs) -> FixedPoint:
        result = remembered(*args, **kwargs)
        if isinstance(result, str):
            raise NotExact(result)
        return result

    return found


def added(a: Quantized, b: Quantized, y: Quantized, low: int = -128, high: int = 127) -> Array:
    """int64 (256, 256): the quantized sum of each pair of values of ``a`` and ``b``,
    clip(rint((f32((a - z_a) · s_a) + f32((b - z_b) · s_b)) / s_y) + z_y, low, high), in float32.
    """
    first, second = (_dequantized(x) for x in (a, b))
    return _quantized(first[:, None] + second, y, low, high)


def addition_constants(
    a: Quantized, b: Quantized, y: Quantized, config: Config, wanted: Array
) -> FixedPoint:
    """Find constants with two factors that give ``wanted``, int64 (256, 256), for all pairs: the
    results of `added` or of a similar formula.

    Raises `NotExact` if there are none; the addition then runs on the host.
    """
    return _addition_constants(a, b, y, config, wanted.astype(np.int8).tobytes())


@_memoized
def _addition_constants(
    a: Quantized, b: Quantized, y: Quantized, config: Config, wanted: bytes
) -> FixedPoint:
    _require_bytes(config)
    results = np.frombuffer(wanted, np.int8).astype(np.int64)
    ratios = [float(np.float32(x.scale)) / float(np.float32(y.scale)) for x in (a, b)]
    moved = sum(r * x.zero_point for r, x in zip(ratios, (a, b), strict=True))
    offset, bounds = y.zero_point - moved, (y.zero_point, int(results.min()), int(results.max()))
    try:
        pairs = [np.repeat(BYTE, 256), np.tile(BYTE, 256)]
        return fixed_point(pairs, ratios, offset, results, bounds, config)
    except NotExact as problem:
        square = results.reshape(len(BYTE), -1)
        if found := corrected_sum(ratios, offset, square, bounds, config):
            return found
        raise NotExact(
            f"an addition of scales {a.scale:.6g} and {b.scale:.6g} to {y.scale:.6g}: {problem}"
        ) from None


def rescaled_bytes(x: Quantized, y: Quantized, low: int = -128, high: int = 127) -> Array:
    """int64 (256,): each int8 after DequantizeLinear and QuantizeLinear,
    clip(rint(f32((x - z_x) · s_x) / s_y) + z_y, low, high), in float32."""
    return _quantized(_dequantized(x), y, low, high)


@_memoized
def byte_constants(
    x: Quantized, y: Quantized, config: Config, low: int = -128, high: int = 127
) -> FixedPoint:
    """Find constants with one factor that give `rescaled_bytes` for every int8.

    Raises `NotExact` if there are none.
    """
    _require_bytes(config)
    ratio = float(np.float32(x.scale)) / float(np.float32(y.scale))
    offset, bounds = y.zero_point - ratio * x.zero_point, (y.zero_point, low, high)
    wanted = rescaled_bytes(x, y, low, high)
    try:
        return fixed_point([BYTE], [ratio], offset, wanted, bounds, config)
    except NotExact as problem:
        raise NotExact(f"a scale of {x.scale:.6g} changed to {y.scale:.6g}: {problem}") from None


def product_constants(
    a: Quantized, b: Quantized, y: Quantized, config: Config, wanted: Array
) -> FixedPoint:
    """Find constants with one factor, for the product of both operands less their zero points, that
    give ``wanted``, int64 (256, 256), for all pairs. Raises `NotExact` if there are none.
    """
    return _product_constants(a, b, y, config, wanted.astype(np.int8).tobytes())


@_memoized
def _product_constants(
    a: Quantized, b: Quantized, y: Quantized, config: Config, wanted: bytes
) -> FixedPoint:
    _require_bytes(config)
    results = np.frombuffer(wanted, np.int8).astype(np.int64)
    scales = [float(np.float32(x.scale)) for x in (a, b, y)]
    products = (BYTE - a.zero_point)[:, None] * (BYTE - b.zero_point)
    bounds = (y.zero_point, int(results.min()), int(results.max()))
    factor = scales[0] * scales[1] / scales[2]
    values = products.ravel()
    if found := _direct(values, results, 0, np.float32(factor), bounds, config):
        return found
    try:
        return fixed_point([values], [factor], y.zero_point, results, bounds, config)
    except NotExact as problem:
        raise NotExact(
            f"a product of scales {a.scale:.6g} and {b.scale:.6g} to {y.scale:.6g}: {problem}"
        ) from None


def _direct(
    values: Array,
    wanted: Array,
    addend: int,
    scale: np.float32,
    bounds: tuple[int, int, int],
    config: Config,
    neighbours: Sequence[int] = _NEIGHBOURS,
) -> FixedPoint | None:
    """One REQUANTIZE by about ``scale`` that gives ``wanted`` for all ``values``: rounded as
    float32, by a scale among the ``neighbours``, or twice. None if there is none."""
    if not config.requantize or not 0 < scale < te.SCALE_END:
        return None
    direct = FixedPoint((1,), addend, 0, *bounds, scale=float(scale))
    for steps in neighbours:
        other = replace(direct, scale=float(scale + steps * np.spacing(scale)))
        if np.array_equal(other.evaluate([values]), wanted):
            return other
    return _rounded_twice(direct, values, wanted) if config.round_twice else None


def _rounded_twice(direct: FixedPoint, values: Array, wanted: Array) -> FixedPoint | None:
    """``direct`` with a scale and two roundings that give ``wanted`` for all ``values``; None if
    there are none, or if a greater value has a lesser result."""
    order = np.argsort(values, kind="stable")
    sums, results = values[order] + direct.addend, wanted[order]
    rises = np.diff(results)
    if (rises < 0).any() or (rises[np.diff(sums) == 0] != 0).any():
        return None
    at = np.flatnonzero(rises)
    # A rise by several passes all results in between at the same sum.
    before, begins = (np.repeat(part[at], rises[at]) for part in (sums[:-1], sums[1:]))
    reached = np.arange(results[0] + 1, results[-1] + 1) - direct.zero_point
    for second_shift in range(_SECOND_SHIFTS):
        scale = te.scale_of_steps(before, begins, reached, second_shift)
        if scale is not None:
            found = replace(direct, rounded_twice=(scale, second_shift))
            if np.array_equal(found.evaluate([values]), wanted):
                return found
    return None


@_memoized
def line_constants(
    slope: float, offset: float, zero_point: int, wanted: bytes, config: Config
) -> FixedPoint:
    """Find constants with one factor that give ``wanted``, one result for each of the 256 int8
    values x: approximately ``slope`` · x + ``offset``, which includes the ``zero_point``, rounded
    and clipped. Raises `NotExact` if there are none.
    """
    _require_bytes(config)
    results = np.frombuffer(wanted, np.int8).astype(np.int64)
    bounds = (zero_point, int(results.min()), int(results.max()))
    return fixed_point([BYTE], [slope], offset, results, bounds, config)


def wide_constants(
    scale: float, zero_point: int, config: Config, low: int = -128, high: int = 127
) -> FixedPoint:
    """Find constants that requantize int32: clip(rint(f32(f32(x) · scale)) + z, low, high).

    Raises `NotExact` if REQUANTIZE differs for some int32, or if the machine has no REQUANTIZE and
    ``scale`` is not 2^-n with n from 0 to 16, where rounding to float32 has no effect.
    """
    if config.requantize:
        least, most = -1 << 31, (1 << 31) - 1
        if not te.requantizes_as_float32(scale, zero_point, low, high, least, most).all():
            raise NotExact(f"REQUANTIZE by {scale:.6g} differs from float32 for some int32")
        return FixedPoint((1,), 0, 0, zero_point, low, high, scale=float(np.float32(scale)))
    shift = round(-float(np.log2(scale)))
    if scale != 2.0**-shift or not 0 <= shift <= 16:
        raise NotExact(f"a machine without REQUANTIZE scales by 2^-n, n from 0 to 16, not {scale}")
    half = 1 << shift >> 1
    return FixedPoint((1,), half, shift, zero_point, low, high, to_even=int(shift > 0))


def averaged(sums: Array, x: Quantized, y: Quantized, count: int, low: int, high: int) -> Array:
    """int64: the quantized average of ``count`` pixels for each of their ``sums``,
    clip(rint(f32(sum - count · z_x) · f32(s_x / f32(s_y · count))) + z_y, low, high)."""
    return _scaled(sums - count * x.zero_point, _scale(x, y, count), y.zero_point, low, high)


def average_constants(
    x: Quantized, y: Quantized, count: int, config: Config, low: int = -128, high: int = 127
) -> FixedPoint:
    """Find constants that give `averaged` for every sum of ``count`` pixels.

    Raises `NotExact` if there are none; the pooling then runs on the host.
    """
    scale = _scale(x, y, count)
    return sum_constants(scale, x.zero_point, y.zero_point, count, config, low, high)


@_memoized
def sum_constants(
    scale: np.float32,
    x_zero_point: int,
    y_zero_point: int,
    count: int,
    config: Config,
    low: int = -128,
    high: int = 127,
    rounding: IntegerRounding | None = None,
) -> FixedPoint:
    """Find constants with one factor that give clip(rint(f32(sum - count · x_zero_point) · scale) +
    y_zero_point, low, high) for every sum of ``count`` pixels; with an integer ``rounding``, its
    results instead of rint(f32(…) · scale). Raises `NotExact` if there are none.
    """
    _require_bytes(config)
    if 256 * count > _MAX_SUMS:
        raise NotExact(f"sums of {count:,} pixels have too many values to check")
    sums = np.arange(-128 * count, 127 * count + 1)
    offset, bounds = -count * x_zero_point, (y_zero_point, low, high)
    if rounding is None:
        wanted, near = _scaled(sums + offset, scale, *bounds), [0]
    else:
        wanted = np.clip(rounding.evaluate(sums + offset) + y_zero_point, low, high)
        near = _NEIGHBOURS
    if found := _direct(sums, wanted, offset, scale, bounds, config, near):
        return found
    ratio = float(scale)
    try:
        return fixed_point([sums], [ratio], y_zero_point + offset * ratio, wanted, bounds, config)
    except NotExact as problem:
        raise NotExact(f"sums of {count:,} pixels at {scale:.6g}: {problem}") from None


def _require_bytes(config: Config) -> None:
    if config.out_width != 8:
        raise NotExact(f"the machine stores {config.out_width} bits, not 8")


def _dequantized(x: Quantized) -> Array:
    """float32 (256,): the real value of each int8."""
    return (BYTE - x.zero_point).astype(np.float32) * np.float32(x.scale)


def _quantized(values: Array, y: Quantized, low: int, high: int) -> Array:
    with np.errstate(over="ignore"):  # to infinity, which is clipped
        return _rounded(values / np.float32(y.scale), y.zero_point, low, high)


def _scale(x: Quantized, y: Quantized, count: int) -> np.float32:
    return np.float32(np.float32(x.scale) / (np.float32(y.scale) * np.float32(count)))


def _scaled(sums: Array, scale: np.float32, zero_point: int, low: int, high: int) -> Array:
    return _rounded(sums.astype(np.float32) * scale, zero_point, low, high)


def _rounded(steps: Array, zero_point: int, low: int, high: int) -> Array:
    whole = np.rint(steps).astype(np.float64)
    return np.clip(whole + zero_point, low, high).astype(np.int64)
