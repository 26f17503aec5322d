"""Per-channel parameters of REQUANTIZE, proved to equal float32 arithmetic.

Most channels keep their scale and zero point. Nearly dead channels have scales too small for fixed
point, and a bias beyond the width of the multiplier, up to 32 bits, so that some sums wrap around.
Over its possible sums such a channel has one result, or two with a single step between them; any
parameters with these results are equivalent.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.te.requantization import float32_steps

Integers = npt.NDArray[np.int64]
# The largest integer scale of REQUANTIZE.
_MOST = int(te.SCALE_END) - 1
_LEAST, _GREATEST = -1 << 31, (1 << 31) - 1


def channel_parameters(
    bias: Integers,
    scale: npt.NDArray[np.float32],
    bounds: tuple[int, int, int],
    least: Integers,
    most: Integers,
) -> tuple[npt.NDArray[np.int32], list[int]]:
    """Parameters int32 (channels, 4), as `te.requantization_parameters`, for which REQUANTIZE
    equals clip(rint(float32(float32(sum) · scale)) + zero_point, low, high) for all sums from
    ``least`` to ``most``, bias included.

    All arrays are (channels,); ``bounds`` are zero point, low and high. Sums beyond 32 bits wrap
    around, as in ONNX Runtime. The second result lists the channels for which no parameters are
    found.
    """
    first, last = _wrapped(least), _wrapped(most)
    # Some of the sums wrap around and others do not, or their range exceeds 32 bits.
    parted = (first > last) | (most - least > _GREATEST - _LEAST)
    least, most = np.where(parted, _LEAST, first), np.where(parted, _GREATEST, last)
    proved = te.requantizes_as_float32(scale, *bounds, least, most)
    usual = np.where(proved, scale, np.float32(1))
    parameters = te.requantization_parameters(np.where(proved, bias, 0), usual, *bounds)
    missing: list[int] = []
    for channel in np.flatnonzero(~proved):
        limits = int(least[channel]), int(most[channel])
        found = _equivalent(scale[channel], bounds, *limits)
        if found is None and first[channel] > 0 >= last[channel]:
            found = _equivalent_of_parts(
                scale[channel], bounds, int(first[channel]), int(last[channel])
            )
        if found is None:
            missing.append(int(channel))
            continue
        parameters[channel] = found
        # The first parameter is the bias; it wraps around like the sums that it is added to.
        parameters[channel, 0] = np.int64(parameters[channel, 0] + bias[channel]).astype(np.int32)
    return parameters, missing


def _equivalent(
    scale: np.float32, bounds: tuple[int, int, int], least: int, most: int
) -> npt.NDArray[np.int32] | None:
    """Parameters without bias, equivalent to ``scale`` for all sums from ``least`` to ``most``;
    None if none are found."""
    if not np.isfinite(scale) or scale < 0:
        return None
    steps = float32_steps(scale, bounds, least, most)
    jump = steps.highest - steps.lowest
    if (steps.begins != steps.begins[:1]).any() or jump > _MOST:
        return None
    moved = 1 - int(steps.begins[0]) if jump else 0
    if least + moved < _LEAST or most + moved > _GREATEST:
        return None
    return _two_results(moved, steps.lowest, steps.highest)


def _equivalent_of_parts(
    scale: np.float32, bounds: tuple[int, int, int], first: int, last: int
) -> npt.NDArray[np.int32] | None:
    """Equivalent parameters for sums that wrap around: from ``first`` > 0 to the largest int32, and
    from the smallest int32 to ``last`` <= 0."""
    if not np.isfinite(scale) or scale < 0:
        return None
    upper = float32_steps(scale, bounds, first, _GREATEST)
    lower = float32_steps(scale, bounds, _LEAST, last)
    if len(upper.results) or len(lower.results) or upper.lowest - lower.lowest > _MOST:
        return None
    return _two_results(0, lower.lowest, upper.lowest)


def _two_results(moved: int, lower: int, upper: int) -> npt.NDArray[np.int32]:
    """Parameters that result in ``lower`` for sums up to ``-moved``, and in ``upper`` for larger
    sums: the scale is large enough to step from one to the other within one sum."""
    parameters = te.requantization_parameters(
        [moved], float(max(upper - lower, 1)), lower, lower, upper
    )
    return np.asarray(parameters[0], np.int32)


def _wrapped(sums: Integers) -> Integers:
    """Wrap ``sums`` around to 32 bits."""
    return sums.astype(np.int32).astype(np.int64)
