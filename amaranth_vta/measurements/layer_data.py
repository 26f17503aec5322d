"""Random tensors for a convolution, with results computed by NumPy: `layer_data`.

Scales are chosen so that results spread over their whole range.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import RoundingShift
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.runtime.scalars import pack

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


def layer_data(layer: Conv2d, config: Config) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """The bytes of input, weights and constants, and of the expected results, computed by NumPy."""
    x, w, constants = _random_data(layer, config)
    total = _wrapped(convolved(layer, x, w), config)
    expected = _requantized(layer, total, constants, config)
    inp, wgt, acc, out = (
        f"int{width}"
        for width in (config.inp_width, config.wgt_width, config.acc_width, config.out_width)
    )
    return pack(x, inp), pack(w, wgt), pack(constants, acc), pack(expected, out)


def _random_data(layer: Conv2d, config: Config, seed: int = 0) -> tuple[Array, Array, Array]:
    """Input, weights, and constants of the epilogue, tiled."""
    chance = np.random.default_rng(seed)
    channels = layer.outputs * config.block_out
    summed = layer.inputs * config.block_in * layer.kernel[0] * layer.kernel[1]
    # Limits the factors so that sums do not overflow narrow accumulators.
    most = isqrt((1 << config.acc_width - 2) // summed)

    def numbers(width: int, shape: tuple[int, ...]) -> Array:
        limit = min(1 << width - 1, max(most, 1))
        return chance.integers(-limit, limit, shape, np.int8)

    image = (layer.batch, layer.inputs, layer.height, layer.width)
    x = numbers(config.inp_width, (*image, config.batch, config.block_in))
    tile = (config.block_out, config.block_in)
    w = numbers(config.wgt_width, (layer.outputs, layer.inputs, *layer.kernel, *tile))
    requantize = layer.requantize
    if isinstance(requantize, RoundingShift):
        most_bias = min(9999, 1 << config.acc_width - 4)
        bias = chance.integers(-most_bias, most_bias, channels) + requantize.half
        flat = bias[:, None].astype(f"int{config.acc_width}")
    else:
        # The standard deviation of a sum of n products of two such bytes is about 5,500 · √n.
        scale = chance.uniform(0.5, 1.5, channels) * 60 / (5500 * summed**0.5)
        flat = te.requantization_parameters(
            chance.integers(-9999, 9999, channels), scale.astype(np.float32), -3, -128, 127
        )
    by_tile = flat.reshape(layer.outputs, 1, config.block_out, -1).transpose(0, 3, 1, 2)
    return x, w, np.repeat(by_tile, config.batch, axis=2)


def _requantized(layer: Conv2d, total: Array, constants: Array, config: Config) -> Array:
    """Requantizes ``total`` (images, outputs, rows, columns, BATCH, BLOCK_OUT)."""
    requantize = layer.requantize
    of_channel = [constants[None, :, number, None, None] for number in range(constants.shape[1])]
    if isinstance(requantize, RoundingShift):
        biased = _wrapped(total.astype(np.int64) + of_channel[0] - requantize.half, config)
        return requantize.evaluate(biased).astype(np.int8)
    return te.requantized(total, *of_channel).astype(np.int8)


def _wrapped(values: Array, config: Config) -> Array:
    """``values`` wrapped around to the width of an accumulator."""
    return values.astype(f"int{config.acc_width}")


def convolved(layer: Conv2d, x: Array, w: Array) -> Array:
    """The convolution by NumPy: int64 sums (images, outputs, rows, columns, BATCH, BLOCK_OUT)."""
    top, left, bottom, right = layer.pads
    padded = np.pad(
        x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right), (0, 0), (0, 0))
    )
    # (images, rows, columns, inputs) and (kernel, kernel, inputs, outputs), exact in float64.
    images = padded.transpose(0, 4, 2, 3, 1, 5)
    images = images.reshape(-1, *padded.shape[2:4], padded.shape[1] * padded.shape[5])
    matrices = w.astype(np.float64).transpose(2, 3, 1, 5, 0, 4)
    matrices = matrices.reshape(*layer.kernel, images.shape[-1], -1)
    height, width = layer.output_height, layer.output_width
    total = np.zeros((images.shape[0], height, width, matrices.shape[-1]))
    for dy in range(layer.kernel[0]):
        for dx in range(layer.kernel[1]):
            rows_read = slice(dy, dy + (height - 1) * layer.strides[0] + 1, layer.strides[0])
            columns_read = slice(dx, dx + (width - 1) * layer.strides[1] + 1, layer.strides[1])
            total += images[:, rows_read, columns_read] @ matrices[dy, dx]
    in_tiles = total.astype(np.int64)
    in_tiles = in_tiles.reshape(x.shape[0], x.shape[4], height, width, w.shape[0], -1)
    return in_tiles.transpose(0, 4, 2, 3, 1, 5)
