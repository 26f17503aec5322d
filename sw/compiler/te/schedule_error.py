"""The error raised by illegal schedule steps."""

from __future__ import annotations

from .dtypes import ExpressionError, whole_number


class ScheduleError(ValueError):
    """A schedule step is illegal; the message names the axis and the reason."""


def positive(step: str, value: object) -> int:
    """``value`` as a positive int; raises `ScheduleError`, naming ``step``, otherwise."""
    try:
        number = whole_number(value)
    except ExpressionError as error:
        raise ScheduleError(f"{step}: {error}") from None
    if number < 1:
        raise ScheduleError(f"{step}: {number} is not positive")
    return number
