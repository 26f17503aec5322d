"""Averages, sums and maxima over rows and columns."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from amaranth_vta.sw.compiler.graph.integer_operators import QUOTIENT
from amaranth_vta.sw.runtime.array_file import require_within_limit
from amaranth_vta.sw.runtime.network.model_error import ModelError

from .conversion import Conversion
from .file import Array, TfliteOperator
from .precision import require_bytes
from .products import paddings


def max_pool(operator: TfliteOperator, to: Conversion) -> None:
    """MAX_POOL_2D."""
    number, result = operator.inputs[0], operator.outputs[0]
    require_bytes(operator, to.tensor(number))
    kernel, strides = _window(operator)
    pads = paddings(operator, to.tensor(number).shape[1:3], kernel, strides)
    stored = to.clamped(operator, result, True)
    to.add(
        "MaxPool",
        (to.name(number, True),),
        (stored,),
        operator.name,
        kernel_shape=list(kernel),
        strides=list(strides),
        pads=pads,
    )
    to.clamp(operator, result, True, stored)


def average_pool(operator: TfliteOperator, to: Conversion) -> None:
    """AVERAGE_POOL_2D: the sum of the integers of each window, divided by the number of pixels that
    are not padding, rounded half away from zero. One convolution per number of pixels, and Where
    chooses among their results."""
    number, result = operator.inputs[0], operator.outputs[0]
    x, y = to.tensor(number), to.tensor(result)
    require_bytes(operator, x, y)
    if x.scale != y.scale or x.zero_point != y.zero_point:
        raise ModelError(f"{operator.name} changes the scale, which TensorFlow Lite does not")
    kernel, strides = _window(operator)
    pads = paddings(operator, x.shape[1:3], kernel, strides)
    counts = np.multiply.outer(
        *(
            _counted(x.shape[1 + axis], y.shape[1 + axis], kernel[axis], strides[axis], pads[axis])
            for axis in (0, 1)
        )
    )
    if counts.min() <= 0:
        raise ModelError(f"{operator.name} has a window of padding only")
    stored = to.clamped(operator, result, True)
    first, *others = sorted(set(counts.ravel().tolist()), reverse=True)
    window: dict[str, Any] = {"kernel_shape": list(kernel), "strides": list(strides), "pads": pads}
    latest = ""
    for count in (first, *others):
        name = operator.name if not latest else f"{operator.name}_of_{count}"
        shape = to.network.types[stored].shape or ()
        here = to.inner(f"{name}_average", y.dtype, shape) if others else stored
        _average(operator, to, name, here, count, window)
        if latest:
            mask = to.value(f"{name}_results", (counts == count)[None, None])
            last = count == others[-1]
            chosen = stored if last else to.inner(f"{name}_or_more", y.dtype, shape)
            to.add("Where", (mask, here, latest), (chosen,), f"{name}_or_more")
            here = chosen
        latest = here
    to.clamp(operator, result, True, stored)


def _average(
    operator: TfliteOperator,
    to: Conversion,
    name: str,
    stored: str,
    count: int,
    window: dict[str, Any],
) -> None:
    """Append the convolution that sums windows and divides by ``count``."""
    x = to.tensor(operator.inputs[0])
    channels = x.shape[3]
    require_within_limit(f"the window of {operator.name}", channels * prod(window["kernel_shape"]))
    values = {
        "x_scale": np.float32(1),
        "x_zero_point": np.zeros((), x.dtype),
        "weights": np.ones((channels, 1, *window["kernel_shape"]), x.dtype),
        "weight_scale": np.float32(1),
        "weight_zero_point": np.zeros((), x.dtype),
        "y_scale": np.float32(count),
        "y_zero_point": np.zeros((), x.dtype),
    }
    inputs = [to.value(f"{name}_{what}", value) for what, value in values.items()]
    to.add(
        "QLinearConv",
        (to.name(operator.inputs[0], True), *inputs),
        (stored,),
        name,
        group=channels,
        rounding=QUOTIENT,
        count=count,
        **window,
    )


def _window(operator: TfliteOperator) -> tuple[tuple[int, int], tuple[int, int]]:
    kernel = operator.option("filterHeight"), operator.option("filterWidth")
    strides = operator.option("strideH"), operator.option("strideW")
    if min(*kernel, *strides) <= 0:
        raise ModelError(f"{operator.name} has a window or a stride that is not positive")
    return kernel, strides


def _counted(size: int, results: int, taps: int, step: int, before: int) -> Array:
    """The rows (or columns) of each window that are not padding."""
    begin = np.arange(results) * step - before
    return np.minimum(begin + taps, size) - np.maximum(begin, 0)
