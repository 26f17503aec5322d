"""The error of an impossible schedule step."""

from __future__ import annotations

from .dtypes import ExpressionError, whole_number


class ScheduleError(ValueError):
    """A scheduling step is not possible; the message names the axis and the reason."""


def positive(step: str, value: object) -> int:
    """``value``, of a ``step`` that takes a positive number; raises `ScheduleError` for another."""
    try:
        number = whole_number(value)
    except ExpressionError as error:
        raise ScheduleError(f"{step}: {error}") from None
    if number < 1:
        raise ScheduleError(f"{step}: {number} is not positive")
    return number
