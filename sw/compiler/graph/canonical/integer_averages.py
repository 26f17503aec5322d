"""Averages of the canonical form: convolutions with weights of one.

With S the sum of N integers less their zero point, an average is

    saturate(rint(float32(S) · float32(s_x / float32(s_y · N))) + z_y),

which is what QLinearConv computes with weights of 1 at a scale of 1 and an output scale of s_y · N.
A sum is the same without N.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.graph.windows import counted_pixels, window

from .quantization import (
    BYTE_TYPES,
    QuantizationParameters,
    clipped,
    integer_limits,
    parameters_of,
    quantized_after,
)
from .simpler_forms import reduced_axes
from .sum_steps import FLOAT32, STEPS

_REDUCTIONS = frozenset({"ReduceMean", "ReduceSum"})
AVERAGES = _REDUCTIONS | {"AveragePool", "GlobalAveragePool"}


def fuse_average(network: Network, node: Node) -> bool:
    """Rewrite DequantizeLinear → AveragePool | GlobalAveragePool | ReduceMean | ReduceSum → [Relu |
    Clip] → QuantizeLinear as QLinearConv, then Clip.

    If border windows count fewer pixels, there is one QLinearConv per pixel count, and Where
    selects among their results.
    """
    if node.domain or node.operator not in AVERAGES:
        return False
    dequantize = network.maker(node.inputs[0])
    data = parameters_of(network, dequantize, "DequantizeLinear")
    after = quantized_after(network, node.outputs[0])
    if data is None or dequantize is None or after is None or not data.per_tensor:
        return False
    clamps, quantize, out = after
    if data.zero.dtype not in BYTE_TYPES or out.zero.dtype != data.zero.dtype:
        return False
    shape = network.types[node.inputs[0]].shape
    windows = None if shape is None else _windows(network, node, shape)
    if shape is None or windows is None:
        return False
    result = quantize.outputs[0]
    average = _Average(network, node.name, dequantize.inputs[0], result, shape, windows, data, out)
    made = average.nodes()
    low, high = integer_limits(network, clamps, out)
    network.nodes.replace(quantize, clipped(network, made, out, low, high))
    for gone in (node, *clamps):
        network.nodes.remove(gone)
    return True


@dataclass(frozen=True)
class _Windows:
    """Attributes of the convolution, and the number of pixels that an average is divided by: one
    for all results, or int64 (height, width)."""

    attributes: dict[str, list[int]]
    counts: Array


def _windows(network: Network, node: Node, shape: tuple[int, ...]) -> _Windows | None:
    """The windows of ``node`` over images of ``shape``; None if no convolution has such windows."""
    rank = len(shape)
    if node.operator in _REDUCTIONS and rank in (3, 4):
        axes = reduced_axes(network, node)
        if not axes or axes[0] < 2:
            return None
        kernel = [shape[axis] if axis in axes else 1 for axis in range(2, rank)]
        count = 1 if node.operator == "ReduceSum" else prod(kernel)
        return _Windows({"kernel_shape": kernel}, np.array(count))
    if rank != 4:
        return None
    if node.operator == "GlobalAveragePool":
        return _Windows({"kernel_shape": list(shape[2:])}, np.array(prod(shape[2:])))
    out = network.types[node.outputs[0]].shape
    if out is None:
        return None
    image = (shape[0], shape[1], shape[2], shape[3])
    moved = window(node, image, (out[0], out[1], out[2], out[3]), ())
    if moved.dilations != (1, 1) or moved.size(image[2:]) != out[2:]:
        return None
    attributes = {
        "kernel_shape": list(moved.kernel),
        "strides": list(moved.strides),
        "pads": list(moved.pads),
    }
    counted = node.attributes.get("pads") if node.attributes.get("count_include_pad") else None
    top, left, bottom, right = counted or (0, 0, 0, 0)
    rows = counted_pixels(moved, 0, (-top, shape[2] + bottom), out[2])
    columns = counted_pixels(moved, 1, (-left, shape[3] + right), out[3])
    counts = rows[:, None] * columns
    return _Windows(attributes, counts) if counts.all() else None


@dataclass(frozen=True)
class _Average:
    """An average of ``source``, images of ``shape``, to ``result``."""

    network: Network
    name: str
    source: str
    result: str
    shape: tuple[int, ...]
    windows: _Windows
    data: QuantizationParameters
    out: QuantizationParameters

    def nodes(self) -> list[Node]:
        network, result, counts = self.network, self.result, self.windows.counts
        final = network.types[result].shape
        if final is not None and len(final) < len(self.shape):
            return self._reshaped(final)
        first, *others = sorted(set(counts.ravel().tolist()), reverse=True)
        if not others:
            return [self._convolution(self.name, first, result)]
        made, latest = [], ""
        for count in (first, *others):
            name = f"{self.name}_of_{count}" if latest else self.name
            here = self._intermediate(f"{self.name}_of_{count}")
            made.append(self._convolution(name, count, here))
            if latest:
                mask = network.add_constant(f"{name}_results", (counts == count)[None, None])
                chosen = result if count == others[-1] else self._intermediate(f"{name}_or_more")
                made.append(Node("Where", f"{name}_or_more", (mask, here, latest), (chosen,)))
                here = chosen
            latest = here
        return made

    def _intermediate(self, name: str) -> str:
        made = self.network.unused_name(name)
        self.network.types[made] = self.network.types[self.result]
        return made

    def _reshaped(self, final: tuple[int, ...]) -> list[Node]:
        """The convolution, and a Reshape that removes the reduced axes."""
        network, result = self.network, self.result
        kernel = self.windows.attributes["kernel_shape"]
        sizes = (
            size if window == 1 else 1 for size, window in zip(self.shape[2:], kernel, strict=True)
        )
        pooled = network.unused_name(f"{result}_image")
        network.types[pooled] = replace(network.types[result], shape=(*self.shape[:2], *sizes))
        flat = network.add_constant(f"{self.name}_shape", np.array(final, np.int64))
        conv = self._convolution(self.name, self.windows.counts.item(), pooled)
        return [conv, Node("Reshape", f"{self.name}_flat", (pooled, flat), (result,))]

    def _convolution(self, name: str, count: int, result: str) -> Node:
        channels, attributes = self.shape[1], self.windows.attributes
        data, out = self.data, self.out
        self.network.rounding.takes(name, FLOAT32 * STEPS)  # only the scale is rounded
        constants = {
            "x_scale": data.scale.reshape(()),
            "x_zero_point": data.zero.reshape(()),
            "weight": np.ones((channels, 1, *attributes["kernel_shape"]), data.zero.dtype),
            "weight_scale": np.array(1, np.float32),
            "weight_zero_point": np.array(0, data.zero.dtype),
            "y_scale": (out.scale.reshape(()) * np.float32(count)).astype(np.float32),
            "y_zero_point": out.zero.reshape(()),
        }
        inputs = [
            self.network.add_constant(f"{name}_{what}", value) for what, value in constants.items()
        ]
        kind = attributes | {"group": channels}
        return Node("QLinearConv", name, (self.source, *inputs), (result,), kind)
