"""Softmax of 8-bit integers in fixed point, as TensorFlow Lite's reference kernel defines it.

The exponential of a difference to the greatest value is a table of 256 entries in Q0.31. The
reciprocal of their sum is found by three Newton-Raphson steps in Q2.29. `exponentials` are computed
here in Python's integers; the remaining steps are operators of ONNX, appended by `append_softmax`.
Constants and the order of operations follow gemmlowp's fixedpoint.h.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from amaranth_vta.sw.compiler import te

# Integer bits of scaled differences, and fraction bits of the sum's rescaling.
_INTEGER_BITS, _SUM_BITS = 5, 12
_FRACTION = 31 - _INTEGER_BITS
# Factors exp(-2^n) in Q0.31 for n from -2.
_POWERS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
# exp(-1/8) and 1/3 in Q0.31; 48/17 and -32/17 in Q2.29.
_EXP_EIGHTH, _THIRD = 1895147668, 715827883
_48_OVER_17, _MINUS_32_OVER_17 = 1515870810, -1010580540
_ONE = (1 << 31) - 1


def exponentials(scale: float, beta: float) -> npt.NDArray[np.int64]:
    """int64 (256,): exp(-beta · scale · d) in Q0.31 for the differences d from 0 to 255; 0 where
    the kernel leaves a value out."""
    factor = min(beta * scale * (1 << _FRACTION), float(_ONE))
    multiplier, left = (int(item) for item in te.quantized_multiplier(factor))
    most = int(((1 << _INTEGER_BITS) - 1) * (1 << _FRACTION) / (1 << left))
    return np.array(
        [
            _exponential(_product(-difference << left, multiplier)) if difference <= most else 0
            for difference in range(256)
        ],
        np.int64,
    )


def _product(a: int, b: int) -> int:
    """The upper half of the doubled product, rounded to nearest."""
    product = a * b
    moved = product + ((1 << 30) if product >= 0 else 1 - (1 << 30))
    return moved >> 31 if moved >= 0 else -(-moved >> 31)


def _halved(value: int, bits: int) -> int:
    """``value`` / 2^bits, rounded half away from zero."""
    half = 1 << bits >> 1
    return (value + half) >> bits if value >= 0 else -((-value + half) >> bits)


def _exponential(value: int) -> int:
    """exp(value / 2^26) in Q0.31, for values up to 0."""
    if value == 0:
        return _ONE
    quarter = 1 << _FRACTION - 2
    within = (value & quarter - 1) - quarter
    result = _near_zero(within << _INTEGER_BITS)
    remainder = within - value
    for number, factor in enumerate(_POWERS):
        if remainder >> _FRACTION - 2 + number & 1:
            result = _product(result, factor)
    return result


def _near_zero(value: int) -> int:
    """exp(value / 2^31) in Q0.31, for values from -1/4 to 0, by the series around -1/8."""
    x = value + (1 << 28)
    square = _product(x, x)
    cube, fourth = _product(square, x), _product(square, square)
    series = _halved(_product(_halved(fourth, 2) + cube, _THIRD) + square, 1)
    return _EXP_EIGHTH + _product(_EXP_EIGHTH, x + series)


Apply = Callable[..., str]


def append_softmax(
    apply: Apply, constant: Callable[[object], str], differences: str, table: npt.NDArray[np.int64]
) -> str:
    """Append the operators from ``differences`` to the greatest value, int64, to the results less
    the least integer. ``apply`` appends an operator and returns its result; ``constant`` adds a
    constant of int64."""

    def product(a: str, b: str) -> str:
        whole = apply("Mul", a, b)
        nudges = constant(1 - (1 << 30)), constant(1 << 30)
        nudge = apply("Where", apply("Less", whole, constant(0)), *nudges)
        return apply("Div", apply("Add", whole, nudge), constant(1 << 31))

    exponential = apply("Gather", constant(table), differences)
    parts = np.array([_halved(int(value), _SUM_BITS) for value in table], np.int64)
    last = constant([-1])
    total = apply("ReduceSum", apply("Gather", constant(parts), differences), last)
    # The sum is normalized to 32 bits.
    powers = constant(np.int64(1) << np.arange(32))
    large = apply("Cast", apply("GreaterOrEqual", total, powers), to=TensorProto.INT64)
    bits = apply("ReduceSum", large, last)
    shift = apply("Sub", constant(32), bits)
    normal = apply("Mul", total, apply("Gather", powers, shift))
    half = apply("Div", normal, constant(2))
    x = apply("Add", constant(_48_OVER_17), product(half, constant(_MINUS_32_OVER_17)))
    for _ in range(3):
        rest = apply("Sub", constant(1 << 29), product(half, x))
        step = apply("Mul", product(x, rest), constant(4))
        x = apply("Add", x, step)
    reciprocal = apply("Min", apply("Mul", x, constant(2)), constant(_ONE))
    scaled = product(reciprocal, exponential)
    places = apply("Add", bits, constant(_SUM_BITS - 32 + 31 - 8))
    divisors = constant(np.int64(1) << np.arange(62))
    divisor = apply("Gather", divisors, places)
    rounded = apply("Add", scaled, apply("Div", divisor, constant(2)))
    return apply("Div", rounded, divisor)
