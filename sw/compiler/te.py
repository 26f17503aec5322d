"""The names of the tensor-expression language: ``from amaranth_vta import te``."""

from __future__ import annotations

from .evaluate import evaluate
from .expr import (
    ExpressionError,
    IterVar,
    Tensor,
    compute,
    const,
    if_then_else,
    pad,
    placeholder,
    reduce_axis,
    requantize,
)
from .expr import all_of as all
from .expr import maximum as max
from .expr import minimum as min
from .expr import sum_over as sum
from .requantization import requantization_parameters, requantized
from .schedule import Schedule, ScheduleError, create_schedule, thread_axis

__all__ = [
    "ExpressionError",
    "IterVar",
    "Schedule",
    "ScheduleError",
    "Tensor",
    "all",
    "compute",
    "const",
    "create_schedule",
    "evaluate",
    "if_then_else",
    "max",
    "min",
    "pad",
    "placeholder",
    "reduce_axis",
    "requantization_parameters",
    "requantize",
    "requantized",
    "sum",
    "thread_axis",
]
