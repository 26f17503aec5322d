"""Find straight lines between bounds that reproduce the 256 results of a function.

Per tensor, the constants are a `FixedPoint`. Per channel, they are those of a depthwise 1×1
convolution: (weight · x + bias) · scale, by GEMM and REQUANTIZE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import REQUANTIZE_PARAMETERS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.operators.building_blocks.exact_constants import BYTE, line_constants
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import (
    Array,
    FixedPoint,
    NotExact,
)
from amaranth_vta.sw.compiler.operators.building_blocks.steps import LINE_FACTOR

from .layer import Unsupported

# Weights of one int8; if none of them reproduces all results, sums of two, which allow finer
# biases.
_WEIGHTS = np.arange(1, 128), np.arange(128, 255)
# Number of slopes tried, their order, and the number of weights tried for each.
_SLOPES, _TRIED = 17, 8
_FROM_THE_MIDDLE = sorted(range(_SLOPES), key=lambda index: abs(index - _SLOPES // 2))
# Tolerance for strips that only touch: they share a line, which float rounding could miss.
_TOUCH = 1e-9
_FINEST = 1 << 12
_STEEPEST = 2.0**16
_BISECTIONS = 60
_NO_LINE = "it is not a straight line between two bounds"


def line(table: Array, zero_point: int, config: Config) -> FixedPoint:
    """Constants that reproduce ``table``, int64 (256,), in which ties were rounded to even before
    ``zero_point`` was added. Raises `Unsupported`."""
    found = slope_and_offset(table)
    if found is None:
        raise Unsupported(f"{_NO_LINE}, and the machine has no LOOKUP")
    try:
        return line_constants(*found, zero_point, table.astype(np.int8).tobytes(), config)
    except NotExact as problem:
        raise Unsupported(f"about {found[0]:.6g} · x + {found[1]:.6g}: {problem}") from None


def channel_lines(
    table: Array, zero_point: int, config: Config
) -> tuple[npt.NDArray[np.int16], Array]:
    """Weights int16 (channels,), each an int8 or the sum of two, and parameters of REQUANTIZE int32
    (channels, 4) that reproduce ``table``, int64 (256, channels), in which ties were rounded to
    even before ``zero_point`` was added. Raises `Unsupported`."""
    if not config.requantize:
        raise Unsupported("it differs from channel to channel, and the machine has no REQUANTIZE")
    weights, parameters = _channel_lines(table.astype(np.int8).tobytes(), zero_point)
    if len(weights) < table.shape[1]:
        raise Unsupported(
            f"{_NO_LINE} in channel {len(weights)}, and LOOKUP has one table for all channels"
        )
    return weights, parameters


@lru_cache(1 << 8)
def _channel_lines(data: bytes, zero_point: int) -> tuple[npt.NDArray[np.int16], Array]:
    """Weights and parameters of the channels before the first one that is not a straight line."""
    table = np.frombuffer(data, np.int8).astype(np.int64).reshape(len(BYTE), -1)
    strips = _Strips.of(table)
    ways = []
    for column, sign, slopes in zip(table.T, strips.signs, strips.slopes().T, strict=True):
        way = _channel_line(column, sign, slopes, zero_point)
        if way is None:
            break
        ways.append(way)
    weights, parameters = ([way[at] for way in ways] for at in (0, 1))
    return np.array(weights, np.int16), np.array(parameters, np.int32).reshape(
        -1, REQUANTIZE_PARAMETERS
    )


def step_lines(table: Array, zero_point: int, config: Config) -> tuple[int, Array] | None:
    """The factor and the parameters of REQUANTIZE int32 (channels, 4) by which a `PerChannelLine`
    reproduces ``table``; see `channel_lines`. None if it cannot."""
    if not config.requantize:
        return None
    strips = _Strips.of(table)
    factor = LINE_FACTOR * int(strips.signs[0])
    found = []
    for column, sign, slopes in zip(table.T, strips.signs, strips.slopes().T, strict=True):
        way = _channel_line(column, sign, slopes, zero_point, (np.array([LINE_FACTOR]),))
        if way is None or way[0] not in (0, factor):
            return None
        found.append(way[1])
    return factor, np.array(found, np.int32)


def _channel_line(
    table: Array, sign: int, slopes: Array, zero_point: int, weights: Sequence[Array] = _WEIGHTS
) -> tuple[int, Array] | None:
    low, high = int(table.min()), int(table.max())
    if low == high:
        return 0, te.requantization_parameters([0], 1.0, low, low, high)[0]
    if np.isnan(slopes[0]):
        return None
    tried = np.linspace(_whole(slopes[0]), _whole(slopes[1]), _SLOPES)
    for some, slope in product(weights, tried[_FROM_THE_MIDDLE]):
        signed = some * sign
        scales = np.float32(slope) / some.astype(np.float32)
        least, most = _allowed(table - zero_point, signed, scales)
        possible = (np.ceil(least) <= np.floor(most)) & (scales > 0) & (scales < te.SCALE_END)
        # The widest interval of biases first: there, rounding to float32 matters least.
        for index in sorted(np.flatnonzero(possible), key=lambda i: least[i] - most[i])[:_TRIED]:
            bias = round((np.ceil(least[index]) + np.floor(most[index])) / 2)
            if abs(bias) >= 1 << 24:
                continue
            way = (scales[index], zero_point, low, high)
            parameters = te.requantization_parameters([bias], *way)[0]
            got = te.requantized((signed[index] * BYTE).astype(np.int32), *parameters)
            if np.array_equal(got, table):
                return int(signed[index]), parameters
    return None


def _allowed(table: Array, weights: Array, scales: Array) -> tuple[Array, Array]:
    """The smallest and largest bias for which (weight · x + bias) · scale rounds to ``table``, for
    each weight and scale; ties may round either way."""
    low, high = table.min(), table.max()
    below = np.where(table == low, -np.inf, table - 0.5)
    above = np.where(table == high, np.inf, table + 0.5)
    moved, steps = weights[:, None] * BYTE, scales[:, None].astype(np.float64)
    return (below / steps - moved).max(axis=1), (above / steps - moved).min(axis=1)


def slope_and_offset(table: Array) -> tuple[float, float] | None:
    """Approximate slope and offset of a straight line that rounds and clips to ``table``, int64
    (256,); None if there is no such line. A constant is a line, too."""
    if table.min() == table.max():
        return 0.0, float(table[0])
    strips = _Strips.of(table[:, None])
    (least,), (most,) = strips.slopes()
    if np.isnan(least):
        return None
    slope = _whole((least + most) / 2)
    (begin,), (end,) = strips.offsets(np.array([slope]))
    offset = _whole((begin + end) / 2)
    # Undo mirroring, which replaces x by -1 - x.
    return (slope, offset) if strips.signs[0] > 0 else (-slope, offset - slope)


@dataclass(frozen=True)
class _Strips:
    """Per channel, the strip of slopes and offsets that each x allows: at x, the line must lie
    between ``below`` and ``above``, both (256, channels), to round to the result. Falling lines are
    mirrored: ``signs`` (channels,) are 1 or -1."""

    below: Array
    above: Array
    signs: Array

    @classmethod
    def of(cls, table: Array) -> _Strips:
        signs = np.where(table[-1] >= table[0], 1, -1)
        rising = np.where(signs > 0, table, table[::-1])
        below = np.where(rising == rising.min(axis=0), -np.inf, rising - 0.5)
        above = np.where(rising == rising.max(axis=0), np.inf, rising + 0.5)
        return cls(below, above, signs)

    def offsets(self, slopes: Array) -> tuple[Array, Array]:
        """The smallest and largest offset of each channel at ``slopes``; no offset is possible if
        the smallest exceeds the largest."""
        moved = BYTE[:, None] * slopes
        return (self.below - moved).max(axis=0), (self.above - moved).min(axis=0)

    def slopes(self) -> Array:
        """float64 (2, channels): the smallest and largest slope with a possible offset; NaN if
        there is none."""
        least, most = np.zeros(len(self.signs)), np.full(len(self.signs), _STEEPEST)
        for _ in range(_BISECTIONS):
            slope = (least + most) / 2
            moved = BYTE[:, None] * slope
            begin, end = self.below - moved, self.above - moved
            possible = begin.max(axis=0) <= end.min(axis=0) + _TOUCH
            # The violated lower bound lies to the right, so the line has to be steeper.
            steeper = begin.argmax(axis=0) > end.argmin(axis=0)
            least = np.where(~possible & steeper, slope, least)
            most = np.where(~possible & ~steeper, slope, most)
            if possible.all():
                break
        if not possible.any():
            return np.full((2, len(possible)), np.nan)
        ends = [self._ends(slope, outside) for outside in (np.zeros_like(slope), 2 * slope + 1)]
        return np.where(possible, ends, np.nan)

    def _ends(self, inside: Array, outside: Array) -> Array:
        """Bisect for the last possible slope between ``inside``, which is possible, and
        ``outside``."""
        for _ in range(_BISECTIONS):
            middle = (inside + outside) / 2
            begin, end = self.offsets(middle)
            possible = begin <= end + _TOUCH
            inside = np.where(possible, middle, inside)
            outside = np.where(possible, outside, middle)
        return inside


def _whole(value: float) -> float:
    """Snap ``value`` to a multiple of 2^-12 if it almost equals one: ties occur only at the exact
    value."""
    steps = round(value * _FINEST)
    return steps / _FINEST if abs(steps / _FINEST - value) < 4 * _TOUCH else value
