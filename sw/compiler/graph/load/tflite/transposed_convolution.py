"""TRANSPOSE_CONV, as one convolution for all phases of the output.

With stride s, the results s · q + p of phase p are a convolution of the input with every s-th tap.
The phases are channels of one QLinearConv, which Reshape, Transpose and Slice interleave and crop,
in the form that the canonical form has for ConvTranspose.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from amaranth_vta.sw.runtime.array_file import require_within_limit
from amaranth_vta.sw.runtime.network.model_error import ModelError

from .conversion import Conversion
from .file import Array, TfliteOperator
from .products import product

_SAME = 0


def transposed_convolution(operator: TfliteOperator, to: Conversion) -> None:
    """TRANSPOSE_CONV (shape, weights, input, bias): weights (outputs, rows, columns, inputs)."""
    _, weights_at, source_at, *bias_at = operator.inputs
    turned = replace(operator, inputs=(source_at, weights_at, *bias_at))
    x, y = to.tensor(source_at), to.tensor(operator.outputs[0])
    weights = to.constant(turned, 1)
    outputs, *kernel, _ = weights.shape
    strides = operator.option("strideH", 1), operator.option("strideW", 1)
    if min(strides) <= 0:
        raise ModelError(f"{operator.name} has a stride that is not positive")
    sizes = x.shape[1:3]
    taps = [-(-size // step) for size, step in zip(kernel, strides, strict=True)]
    before = [
        max((size - 1) * step + window - result, 0) // 2
        if operator.option("padding") == _SAME
        else 0
        for size, step, window, result in zip(sizes, strides, kernel, y.shape[1:3], strict=True)
    ]
    steps = [
        max(size, -(-(begin + result) // step))
        for size, begin, result, step in zip(sizes, before, y.shape[1:3], strides, strict=True)
    ]
    zero = int(to.tensor(weights_at).zero_points[0])
    images, count = x.shape[0], strides[0] * strides[1]
    name, result = operator.name, operator.outputs[0]
    stored = to.clamped(operator, result, True)
    sums = to.inner(f"{name}_sums", y.dtype, (images, count * outputs, *steps))
    product(
        turned,
        to,
        to.name(source_at, True),
        _phases(weights, zero, strides, taps),
        sums,
        repeats=count,
        kernel_shape=taps,
        pads=[
            *(window - 1 for window in taps),
            *(step - size for step, size in zip(steps, sizes, strict=True)),
        ],
    )
    height, width = steps
    shapes = (
        (images, *strides, outputs, height, width),
        (images, outputs, height, strides[0], width, strides[1]),
        (images, outputs, height * strides[0], width * strides[1]),
    )
    parts, order, whole = (
        to.inner(f"{name}_{what}", y.dtype, shape)
        for what, shape in zip(("parts", "turned", "all"), shapes, strict=True)
    )
    to.reshape(sums, parts)
    to.add("Transpose", (parts,), (order,), order, perm=[0, 3, 4, 1, 5, 2])
    to.reshape(order, whole)
    ends = [begin + size for begin, size in zip(before, y.shape[1:3], strict=True)]
    bounds = [to.value(f"{name}_bounds", item, np.int64) for item in (before, ends, (2, 3))]
    to.add("Slice", (whole, *bounds), (stored,), f"{name}_results")
    to.clamp(operator, result, True, stored)


def _phases(weights: Array, zero: int, strides: tuple[int, int], taps: list[int]) -> Array:
    """Weights (phases · outputs, inputs, rows, columns) with reversed taps."""
    outputs, height, width, inputs = weights.shape
    (down, right), (rows, columns) = strides, taps
    size = outputs * inputs * rows * down * columns * right
    require_within_limit("a weight of a transposed convolution", size)
    wide = np.full((outputs, inputs, rows * down, columns * right), zero, weights.dtype)
    wide[:, :, :height, :width] = weights.transpose(0, 3, 1, 2)
    cut = wide.reshape(outputs, inputs, rows, down, columns, right)
    phases = cut[:, :, ::-1, :, ::-1].transpose(3, 5, 0, 1, 2, 4)
    return np.ascontiguousarray(phases.reshape(-1, inputs, rows, columns))
