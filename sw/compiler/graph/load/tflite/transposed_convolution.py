"""TRANSPOSE_CONV, as the canonical form has ConvTranspose: one convolution for all phases of the
output, whose channels Reshape, Transpose and Slice interleave and crop (`phases`).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.graph.phases import (
    PIXELS_OF_PHASES,
    PhaseAxis,
    interleaving_shapes,
    phase_kernels,
    phase_pads,
)
from amaranth_vta.sw.runtime.array_file import require_within_limit
from amaranth_vta.sw.runtime.network.model_error import ModelError

from .conversion import TO_FIRST, Conversion
from .file import Array, FileTensor, TfliteOperator
from .products import SAME, product


def transposed_convolution(operator: TfliteOperator, to: Conversion) -> None:
    """TRANSPOSE_CONV (shape, weights, input, bias): weights (outputs, rows, columns, inputs)."""
    _, weights_at, source_at, *bias_at = operator.inputs
    turned = replace(operator, inputs=(source_at, weights_at, *bias_at))
    x, y = to.tensor(source_at), to.tensor(operator.outputs[0])
    weights = to.constant(turned, 1).transpose(TO_FIRST)
    strides = operator.option("strideH", 1), operator.option("strideW", 1)
    if min(strides) <= 0:
        raise ModelError(f"{operator.name} has a stride that is not positive")
    rows, columns = axes = _axis(operator, x, y, weights, 0), _axis(operator, x, y, weights, 1)
    name, result = operator.name, operator.outputs[0]
    images, outputs, count = x.shape[0], len(weights), strides[0] * strides[1]
    size = prod(weights.shape[:2]) * count * rows.taps * columns.taps
    require_within_limit("a weight of a transposed convolution", size)
    stored = to.clamped(operator, result, True)
    sizes = rows.steps, columns.steps
    sums = to.inner(f"{name}_sums", y.dtype, (images, count * outputs, *sizes))
    product(
        turned,
        to,
        to.name(source_at, True),
        phase_kernels(weights, axes, int(to.tensor(weights_at).zero_points[0])),
        sums,
        repeats=count,
        kernel_shape=[rows.taps, columns.taps],
        pads=phase_pads(axes),
    )
    shapes = interleaving_shapes(images, outputs, strides, sizes)
    parts, order, whole = (
        to.inner(f"{name}_{what}", y.dtype, shape)
        for what, shape in zip(("parts", "turned", "all"), shapes, strict=True)
    )
    to.reshape(sums, parts)
    to.add("Transpose", (parts,), (order,), order, perm=PIXELS_OF_PHASES)
    to.reshape(order, whole)
    begins = [axis.before for axis in axes]
    ends = [axis.before + axis.results for axis in axes]
    bounds = [to.value(f"{name}_bounds", item, np.int64) for item in (begins, ends, (2, 3))]
    to.add("Slice", (whole, *bounds), (stored,), f"{name}_results")
    to.clamp(operator, result, True, stored)


def _axis(
    operator: TfliteOperator, x: FileTensor, y: FileTensor, weights: Array, axis: int
) -> PhaseAxis:
    """Rows, or columns; padding is cropped at both ends."""
    step = operator.option(("strideH", "strideW")[axis], 1)
    inputs, results, kernel = x.shape[1 + axis], y.shape[1 + axis], weights.shape[2 + axis]
    cropped = (inputs - 1) * step + kernel - results if operator.option("padding") == SAME else 0
    return PhaseAxis(inputs, kernel, step, max(cropped, 0) // 2, results)
