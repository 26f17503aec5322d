"""Convolutions and matrix products."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.graph.integer_operators import ONCE, TWICE
from amaranth_vta.sw.runtime.array_file import require_within_limit
from amaranth_vta.sw.runtime.network.model_error import ModelError

from .conversion import TO_FIRST, Conversion
from .file import Array, TfliteOperator
from .precision import require_bytes

# Option ``padding``: as many results as steps of the stride fit into the operand.
SAME = 0
# Window of an image that is smaller than half of it.
_MOST_WINDOW = 1 << 10
# Bound of factors from sums to results, beyond which shifts to the left have no bits.
MOST_FACTOR = 2.0**30


def convolution(operator: TfliteOperator, to: Conversion) -> None:
    """CONV_2D: weights (outputs, rows, columns, inputs)."""
    weights = to.constant(operator, 1).transpose(TO_FIRST)
    channels = to.tensor(operator.inputs[0]).shape[3]
    if channels % weights.shape[1]:
        raise ModelError(f"{operator.name} has {channels} channels, weights {weights.shape[1]}")
    _convolution(operator, to, weights, channels // weights.shape[1])


def depthwise_convolution(operator: TfliteOperator, to: Conversion) -> None:
    """DEPTHWISE_CONV_2D: weights (1, rows, columns, inputs · multiplier)."""
    weights = to.constant(operator, 1).transpose(3, 0, 1, 2)
    _convolution(operator, to, weights, to.tensor(operator.inputs[0]).shape[3])


def _convolution(operator: TfliteOperator, to: Conversion, weights: Array, groups: int) -> None:
    source, result = to.tensor(operator.inputs[0]), operator.outputs[0]
    kernel = weights.shape[2:]
    strides = operator.option("strideH", 1), operator.option("strideW", 1)
    dilations = operator.option("dilationHFactor", 1), operator.option("dilationWFactor", 1)
    if min(*strides, *dilations) <= 0:
        raise ModelError(f"{operator.name} has a stride or a dilation that is not positive")
    stored = to.clamped(operator, result, True)
    product(
        operator,
        to,
        to.name(operator.inputs[0], True),
        weights,
        stored,
        group=groups,
        kernel_shape=list(kernel),
        strides=list(strides),
        dilations=list(dilations),
        pads=paddings(operator, source.shape[1:3], kernel, strides, dilations),
    )
    to.clamp(operator, result, True, stored)


def paddings(
    operator: TfliteOperator,
    sizes: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...] = (1, 1),
) -> list[int]:
    """The rows and columns of padding, in ONNX's order: top, left, bottom, right."""
    begins, ends = [], []
    for size, taps, step, apart in zip(sizes, kernel, strides, dilations, strict=True):
        window = (taps - 1) * apart + 1
        if window > max(2 * size, _MOST_WINDOW):
            raise ModelError(f"{operator.name} has a window of {window:,} pixels for {size:,}")
        whole = 0
        if operator.option("padding") == SAME:
            whole = max((-(-size // step) - 1) * step + window - size, 0)
        begins.append(whole // 2)
        ends.append(whole - whole // 2)
    return [*begins, *ends]


def fully_connected(operator: TfliteOperator, to: Conversion) -> None:
    """FULLY_CONNECTED: weights (outputs, inputs). The product is a 1×1 convolution of one-pixel
    images. If it reads a flattened image, weights are reordered to channels first."""
    weights = to.constant(operator, 1)
    if operator.option("weightsFormat"):
        raise ModelError(f"{operator.name} has shuffled weights")
    outputs, inputs = weights.shape
    number, result = operator.inputs[0], operator.outputs[0]
    rows = prod(to.tensor(number).shape) // inputs
    if rows * inputs != prod(to.tensor(number).shape):
        raise ModelError(f"{operator.name}: weights of {inputs} inputs do not fit its operand")
    image = to.flattened.get(number)
    if image is not None and to.tensor(image).shape[0] == rows and to.has_first(image):
        _, height, width, channels = to.tensor(image).shape
        order = np.arange(inputs).reshape(height, width, channels).transpose(2, 0, 1).ravel()
        weights, given = weights[:, order], to.name(image, True)
    else:
        given = to.name(number)
    shape = rows, inputs, 1, 1
    pixels = to.inner(f"{operator.name}_pixels", to.tensor(number).dtype, shape)
    to.reshape(given, pixels)
    stored = to.clamped(operator, result, False)
    flat = to.inner(f"{operator.name}_result", to.tensor(result).dtype, (rows, outputs, 1, 1))
    product(operator, to, pixels, weights.reshape(*weights.shape, 1, 1), flat, kernel_shape=[1, 1])
    to.reshape(flat, stored)
    to.clamp(operator, result, False, stored)


def channel_sums(
    to: Conversion,
    name: str,
    source: str,
    stored: str,
    channels: int,
    x: tuple[np.float32, Array],
    y: tuple[np.float32, Array],
    **attributes: Any,
) -> None:
    """Append the QLinearConv that sums the pixels of each window of each channel, with weights of
    1. ``x`` and ``y`` are scale and zero point of ``source`` and of ``stored``."""
    (x_scale, x_zero), (y_scale, y_zero) = x, y
    window = attributes["kernel_shape"]
    require_within_limit(f"the window of {name}", channels * prod(window))
    values = {
        "x_scale": x_scale,
        "x_zero_point": x_zero,
        "weights": np.ones((channels, 1, *window), x_zero.dtype),
        "weight_scale": np.float32(1),
        "weight_zero_point": np.zeros((), x_zero.dtype),
        "y_scale": y_scale,
        "y_zero_point": y_zero,
    }
    inputs = [to.value(f"{name}_{what}", value) for what, value in values.items()]
    to.add("QLinearConv", (source, *inputs), (stored,), name, group=channels, **attributes)


def product(
    operator: TfliteOperator,
    to: Conversion,
    source: str,
    weights: Array,
    stored: str,
    repeats: int = 1,
    **attributes: Any,
) -> None:
    """Append the QLinearConv of ``source`` and ``weights`` (outputs, inputs, rows, columns). There
    are ``repeats`` outputs of each channel of the file, which differ in their weights."""
    x, w = to.tensor(operator.inputs[0]), to.tensor(operator.inputs[1])
    y, name = to.tensor(operator.outputs[0]), operator.name
    require_bytes(operator, x, w, y)
    zero = np.unique(w.zero_points)
    if zero.size != 1:
        raise ModelError(f"{operator.name}: its weights have several zero points")
    outputs = weights.shape[0] // repeats
    if w.scales.size not in (1, outputs):
        raise ModelError(f"{operator.name}: {w.scales.size} scales of weights, {outputs} outputs")
    w_scale = np.tile(w.scales, repeats) if w.scales.size > 1 else w.scale
    inputs = [
        source,
        to.value(f"{name}_x_scale", x.scale),
        to.value(f"{name}_x_zero_point", x.zero_point, x.dtype),
        to.value(f"{name}_weights", np.ascontiguousarray(weights)),
        to.value(f"{name}_weight_scale", w_scale),
        to.value(f"{name}_weight_zero_point", zero.item(), w.dtype),
        to.value(f"{name}_y_scale", y.scale),
        to.value(f"{name}_y_zero_point", y.zero_point, y.dtype),
    ]
    bias = to.optional(operator, 2)
    if bias is not None:
        if bias.data is None or bias.dtype != np.int32 or bias.data.size != outputs:
            raise ModelError(f"{operator.name}: its bias is not a constant of int32 per output")
        inputs.append(to.value(f"{name}_bias", np.tile(bias.data, repeats)))
    # The factors from sums to results, in float64 as the kernels compute them.
    factors = np.float64(x.scale) * w.scales.astype(np.float64) / np.float64(y.scale)
    if factors.max() >= MOST_FACTOR:
        raise ModelError(f"{operator.name}: one of its sums is more than 2^30 steps of the result")
    multipliers, shifts = te.quantized_multiplier(factors)
    repeats = repeats if w.scales.size > 1 else 1
    to.add(
        "QLinearConv",
        inputs,
        (stored,),
        name,
        rounding=ONCE if operator.kind == "FULLY_CONNECTED" else TWICE,
        multipliers=np.tile(multipliers, repeats).tolist(),
        shifts=np.tile(shifts, repeats).tolist(),
        **attributes,
    )
