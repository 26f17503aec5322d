"""Averages, sums and maxima over rows and columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from amaranth_vta.sw.compiler.graph.integer_operators import QUOTIENT
from amaranth_vta.sw.compiler.graph.windows import counted_pixels
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.packing import Window

from .conversion import Conversion
from .file import TfliteOperator
from .precision import require_bytes
from .products import channel_sums, paddings


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
    if not x.is_quantized_as(y):
        raise ModelError(f"{operator.name} changes the scale, which TensorFlow Lite does not")
    kernel, strides = _window(operator)
    pads = paddings(operator, x.shape[1:3], kernel, strides)
    top, left, bottom, right = pads
    moved = Window(kernel, strides, (1, 1), (top, left, bottom, right))
    rows, columns = (
        counted_pixels(moved, axis, (0, x.shape[1 + axis]), y.shape[1 + axis]) for axis in (0, 1)
    )
    counts = rows[:, None] * columns
    if counts.min() <= 0:
        raise ModelError(f"{operator.name} has a window of padding only")
    stored = to.clamped(operator, result, True)
    first, *others = sorted(set(counts.ravel().tolist()), reverse=True)
    window: dict[str, Any] = {"kernel_shape": list(kernel), "strides": list(strides), "pads": pads}
    latest, zero = "", np.zeros((), x.dtype)
    for count in (first, *others):
        name = operator.name if not latest else f"{operator.name}_of_{count}"
        shape = to.network.types[stored].shape or ()
        here = to.inner(f"{name}_average", y.dtype, shape) if others else stored
        given, made = (np.float32(1), zero), (np.float32(count), zero)
        channel_sums(
            to,
            name,
            to.name(number, True),
            here,
            x.shape[3],
            given,
            made,
            rounding=QUOTIENT,
            count=count,
            **window,
        )
        if latest:
            mask = to.value(f"{name}_results", (counts == count)[None, None])
            last = count == others[-1]
            chosen = stored if last else to.inner(f"{name}_or_more", y.dtype, shape)
            to.add("Where", (mask, here, latest), (chosen,), f"{name}_or_more")
            here = chosen
        latest = here
    to.clamp(operator, result, True, stored)


def _window(operator: TfliteOperator) -> tuple[tuple[int, int], tuple[int, int]]:
    kernel = operator.option("filterHeight"), operator.option("filterWidth")
    strides = operator.option("strideH"), operator.option("strideW")
    if min(*kernel, *strides) <= 0:
        raise ModelError(f"{operator.name} has a window or a stride that is not positive")
    return kernel, strides
