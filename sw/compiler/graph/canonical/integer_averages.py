"""Averages of the canonical form: convolutions with weights of one.

With S the sum of N integers less their zero point, an average is

    saturate(rint(float32(S) · float32(s_x / float32(s_y · N))) + z_y),

which is what QLinearConv computes with weights of 1 at a scale of 1 and an output scale of s_y · N.
A sum is the same without N.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.graph.layers.parts.windows import window
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node

from .quantization import (
    BYTE_TYPES,
    Parameters,
    clipped,
    integer_limits,
    parameters_of,
    quantized_after,
)
from .simpler_forms import reduced_axes

_REDUCTIONS = frozenset({"ReduceMean", "ReduceSum"})
_AVERAGES = _REDUCTIONS | {"AveragePool", "GlobalAveragePool"}


def fuse_average(network: Network, node: Node) -> bool:
    """DequantizeLinear → AveragePool | GlobalAveragePool | ReduceMean | ReduceSum → [Relu | Clip]
    → QuantizeLinear becomes QLinearConv, then Clip."""
    if node.domain or node.operator not in _AVERAGES:
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
    attributes = None if shape is None else _window(network, node, shape)
    if shape is None or attributes is None:
        return False
    source, result = dequantize.inputs[0], quantize.outputs[0]
    made = _convolution(network, node, source, result, shape[1], attributes, data, out)
    final = network.types[result].shape
    if final is not None and len(final) < len(shape):
        pooled = network.unused_name(f"{result}_image")
        flat = network.add_constant(f"{node.name}_shape", np.array(final, np.int64))
        sizes = (
            size if window == 1 else 1
            for size, window in zip(shape[2:], attributes["kernel_shape"], strict=True)
        )
        network.types[pooled] = replace(network.types[result], shape=(*shape[:2], *sizes))
        conv = made[0]
        made = [
            Node("QLinearConv", node.name, conv.inputs, (pooled,), conv.attributes),
            Node("Reshape", f"{node.name}_flat", (pooled, flat), (result,)),
        ]
    low, high = integer_limits(network, clamps, out)
    network.nodes.replace(quantize, clipped(network, made, out, low, high))
    for gone in (node, *clamps):
        network.nodes.remove(gone)
    return True


def _window(network: Network, node: Node, shape: tuple[int, ...]) -> dict[str, list[int]] | None:
    """Attributes of the convolution; None if windows do not all count the same number of pixels."""
    rank = len(shape)
    if node.operator in _REDUCTIONS and rank in (3, 4):
        axes = reduced_axes(network, node)
        if not axes or axes[0] < 2:
            return None
        return {"kernel_shape": [shape[axis] if axis in axes else 1 for axis in range(2, rank)]}
    if rank != 4:
        return None
    if node.operator == "GlobalAveragePool":
        return {"kernel_shape": list(shape[2:])}
    out = network.types[node.outputs[0]].shape
    if out is None:
        return None
    image = (shape[0], shape[1], shape[2], shape[3])
    moved = window(node, image, (out[0], out[1], out[2], out[3]), ())
    if moved.dilations != (1, 1) or moved.size(image[2:]) != out[2:]:
        return None
    attributes = node.attributes
    if any(moved.pads) and (not attributes.get("count_include_pad") or attributes.get("ceil_mode")):
        return None
    return {
        "kernel_shape": list(moved.kernel),
        "strides": list(moved.strides),
        "pads": list(moved.pads),
    }


def _convolution(
    network: Network,
    node: Node,
    source: str,
    result: str,
    channels: int,
    attributes: dict[str, list[int]],
    data: Parameters,
    out: Parameters,
) -> list[Node]:
    name, kernel = node.name, attributes["kernel_shape"]
    count = np.float32(1 if node.operator == "ReduceSum" else prod(kernel))
    ones = np.ones((channels, 1, *kernel), data.zero.dtype)
    constants = {
        "x_scale": data.scale.reshape(()),
        "x_zero_point": data.zero.reshape(()),
        "weight": ones,
        "weight_scale": np.array(1, np.float32),
        "weight_zero_point": np.array(0, data.zero.dtype),
        "y_scale": (out.scale.reshape(()) * count).astype(np.float32),
        "y_zero_point": out.zero.reshape(()),
    }
    inputs = [network.add_constant(f"{name}_{what}", value) for what, value in constants.items()]
    return [
        Node("QLinearConv", name, (source, *inputs), (result,), attributes | {"group": channels})
    ]
