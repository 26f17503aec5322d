"""Fold per-channel factors after a convolution into its weights and bias.

Quantization-aware training writes Conv → BatchNormalization, which exporters fold only in float
models.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from amaranth_vta.sw.compiler.graph.integer_sums import along_channels
from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.graph.nodes import Node

from .matrix_forms import constant_values
from .quantization import BYTE_TYPES, parameters_of


def fold_channel_factors(network: Network, node: Node) -> bool:
    """Fold BatchNormalization, or Mul or Add with a constant per channel, into the weight scales
    and the bias of the Conv before it, whose weights are quantized.

    A negative factor also negates the weights. The new bias is in float.
    """
    conv = _convolution(network, node)
    if conv is None:
        return False
    shape = network.types[conv.outputs[0]].shape
    weight = network.maker(conv.inputs[1])
    parameters = parameters_of(network, weight, "DequantizeLinear")
    values = network.constants.get(weight.inputs[0]) if weight else None
    if shape is None or weight is None or parameters is None or values is None:
        return False
    line = _line(network, node, shape)
    bias = constant_values(network, conv.input(2)) if conv.input(2) else np.zeros((), np.float32)
    per_channel = not parameters.per_tensor and parameters.axis % values.ndim
    if line is None or bias is None or per_channel or parameters.zero.dtype not in BYTE_TYPES:
        return False
    factor, addend = line
    folded = [
        network.add_constant(f"{node.name}_{what}", value)
        for what, value in zip(
            ("weight", "scale", "zero_point"),
            _scaled(values, parameters.scale, parameters.zero, factor),
            strict=True,
        )
    ]
    made = network.unused_name(f"{node.name}_weight_real")
    network.types[made] = network.types[conv.inputs[1]]
    added = (bias.astype(np.float64) * factor + addend).astype(np.float32)
    inputs = (conv.inputs[0], made, network.add_constant(f"{node.name}_bias", added))
    network.nodes.replace(
        conv,
        [
            Node("DequantizeLinear", made, tuple(folded), (made,), {"axis": 0}),
            replace(conv, inputs=inputs, outputs=node.outputs),
        ],
    )
    network.nodes.remove(node)
    return True


def _convolution(network: Network, node: Node) -> Node | None:
    """The Conv whose only reader is ``node``; an Add or a Mul may read it as either operand."""
    if node.domain or node.operator not in ("Add", "BatchNormalization", "Mul"):
        return None
    for name in node.inputs[: 1 if node.operator == "BatchNormalization" else 2]:
        maker = network.maker(name)
        if maker is not None and maker.operator == "Conv" and not maker.domain:
            return maker if network.only_reader(name) is node else None
    return None


def _line(network: Network, node: Node, shape: tuple[int, ...]) -> tuple[Array, Array] | None:
    """float64 (channels,): factor and addend of each channel of images of ``shape``. None if
    constants differ within a channel, or if a factor is 0 or not finite."""
    line = _of_normalization(network, node)
    if node.operator != "BatchNormalization":
        line = _of_constant(network, node, shape)
    return line if line is not None and np.isfinite(line).all() and line[0].all() else None


def _of_normalization(network: Network, node: Node) -> tuple[Array, Array] | None:
    given = [network.constants.get(name) for name in node.inputs[1:]]
    parameters = [value.astype(np.float64) for value in given if value is not None]
    if len(parameters) != 4 or len(node.outputs) > 1 or node.attributes.get("training_mode"):
        return None
    gamma, beta, mean, variance = parameters
    factor = gamma / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    return factor, beta - mean * factor


def _of_constant(
    network: Network, node: Node, shape: tuple[int, ...]
) -> tuple[Array, Array] | None:
    known = [constant_values(network, name) for name in node.inputs]
    constant = next((value for value in known if value is not None), None)
    if constant is None or constant.ndim > len(shape):
        return None
    sizes = (1,) * (len(shape) - constant.ndim) + constant.shape
    if any(size != 1 for size in (*sizes[:1], *sizes[2:])):
        return None
    values = np.broadcast_to(constant.astype(np.float64).reshape(-1), shape[1])
    if node.operator == "Mul":
        return values, np.zeros(shape[1])
    return np.ones(shape[1]), values


def _scaled(values: Array, scale: Array, zero: Array, factor: Array) -> tuple[Array, Array, Array]:
    """Multiply weights (channels, …) by ``factor``; returns them with scales and zero points
    (channels,)."""
    zeros = np.broadcast_to(zero.reshape(-1), len(values))
    scales = np.broadcast_to(scale.reshape(-1), len(values)) * np.abs(factor)
    # ~w is -1 - w (int8) or 255 - w (uint8): inverting both w and the zero point negates their
    # difference.
    turned = [np.where(along_channels(factor < 0, item), ~item, item) for item in (values, zeros)]
    return turned[0], scales.astype(np.float32), turned[1]
