"""Ranges and arithmetic of the integer dtypes."""

from __future__ import annotations

from functools import cache
from operator import index

INDEX_DTYPE = "int32"
_BITS = {"int4": 4, "int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint4": 4, "uint8": 8}
# Inclusive bounds of a value.
Interval = tuple[int, int]


class ExpressionError(ValueError):
    """The shapes, dtypes or indices of an expression do not fit together."""


def is_dtype(name: object) -> bool:
    """Whether ``name`` names an integer dtype."""
    return isinstance(name, str) and name in _BITS


def dtype_bits(dtype: str) -> int:
    """Width of an integer ``dtype``."""
    return _BITS[dtype]


@cache
def dtype_interval(dtype: str) -> Interval:
    """The least and the greatest value of an integer ``dtype``."""
    if dtype == "bool":
        return 0, 1
    if not is_dtype(dtype):
        raise ExpressionError(f"{dtype!r} is not a dtype; the dtypes are {', '.join(_BITS)}")
    bits = _BITS[dtype]
    return (0, (1 << bits) - 1) if dtype[0] == "u" else (-1 << bits - 1, (1 << bits - 1) - 1)


def whole_number(value: object) -> int:
    """``value`` as an int; raises `ExpressionError` if it is not a whole number."""
    try:
        return index(value if not isinstance(value, bool) else None)  # type: ignore[arg-type]
    except TypeError:
        raise ExpressionError(f"{value!r} is not a whole number") from None


def wrap(value: int, dtype: str) -> int:
    """``value`` wrapped around to ``dtype``."""
    low, high = dtype_interval(dtype)
    return (value - low) % (high - low + 1) + low


def fold(op: str, left: int, right: int, dtype: str) -> int:
    """The result of the `Binary` operation ``op`` on two integers of ``dtype``."""
    match op:
        case "+":
            result = left + right
        case "-":
            result = left - right
        case "*":
            result = left * right
        case "//":
            result = left // right
        case "%":
            result = left % right
        case "min":
            result = min(left, right)
        case "max":
            result = max(left, right)
        case _:
            amount = right if op == ">>" else -right
            result = left >> amount if amount >= 0 else left << min(-amount, 64)
    return wrap(result, dtype)
