"""Public names of the tensor-expression language: ``from amaranth_vta import te``."""

from __future__ import annotations

from .dtypes import ExpressionError
from .evaluation import evaluate
from .expr import IterVar, const
from .functions import all_of as all
from .functions import if_then_else, lookup, requantize
from .functions import maximum as max
from .functions import minimum as min
from .functions import sum_over as sum
from .multipliers import (
    multiply_by_quantized_multiplier,
    parameters_as_tflite,
    parameters_of_scale,
    parameters_rounded_twice,
    quantized_multiplier,
    requantizes_as_tflite,
    scale_of_steps,
)
from .requantization import (
    SCALE_END,
    requantization_parameters,
    requantized,
    requantizes_as_float32,
)
from .schedule import Schedule, ScheduleError, create_schedule, thread_axis
from .tables import looked_up, table_tiles
from .tensor import Tensor, compute, pad, placeholder, reduce_axis

__all__ = [
    "SCALE_END",
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
    "looked_up",
    "lookup",
    "max",
    "min",
    "multiply_by_quantized_multiplier",
    "pad",
    "parameters_as_tflite",
    "parameters_of_scale",
    "parameters_rounded_twice",
    "placeholder",
    "quantized_multiplier",
    "reduce_axis",
    "requantization_parameters",
    "requantize",
    "requantized",
    "requantizes_as_float32",
    "requantizes_as_tflite",
    "scale_of_steps",
    "sum",
    "table_tiles",
    "thread_axis",
]
