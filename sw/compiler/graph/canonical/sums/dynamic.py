"""Canonicalization rules for integer products with a zero point known only at run time, as in
dynamic quantization."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto

from amaranth_vta.sw.compiler.graph.canonical.quantization import BYTE_TYPES
from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .replacement import Replacement

_PRODUCTS = frozenset({"ConvInteger", "MatMulInteger"})


def write_zero_points(network: Network, node: Node) -> bool:
    """Make omitted zero points of a ConvInteger or MatMulInteger explicit constants of 0."""
    if node.domain or node.operator not in _PRODUCTS:
        return False
    zeros = [node.input(2), node.input(3)]
    if all(zeros):
        return False
    for index, what in enumerate("xw"):
        if not zeros[index]:
            value = np.array(0, network.types[node.inputs[index]].dtype)
            zeros[index] = network.add_constant(f"{node.name}_{what}_zero_point", value)
    network.nodes.replace(node, [replace(node, inputs=(*node.inputs[:2], *zeros))])
    return True


def constant_zero_point(network: Network, node: Node) -> bool:
    """Replace the run-time zero point z of a ConvInteger or MatMulInteger with constant weights by
    a constant c, which the machine holds as 0, and correct the sums afterwards: Σ (x − z) w = Σ (x
    − c) w + (c − z) · Σ w. Padding, whose value is z, becomes a separate Pad."""
    if node.domain or node.operator not in _PRODUCTS or node.input(2) in network.constants:
        return False
    given, zero = (network.types.get(node.input(index)) for index in (0, 2))
    weights = _weights(network, node)
    if given is None or zero is None or weights is None or given.dtype not in BYTE_TYPES:
        return False
    if zero.shape not in ((), (1,)) or given.shape is None:
        return False
    convolves = node.operator == "ConvInteger"
    if convolves and node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return False
    made, attributes = Replacement(network, node), dict(node.attributes)
    source = node.inputs[0]
    if any(attributes.get("pads", ())):
        source = _padded(made, node, attributes.pop("pads"), given)
    held = np.array(128 if given.dtype == np.uint8 else 0, given.dtype)
    inputs = (source, node.inputs[1], made.constant("held_zero_point", held), node.inputs[3])
    total = made.add(node.operator, "sums", np.int32, *inputs, **attributes)
    integer = replace(zero, dtype=np.dtype(np.int32))
    (wide,) = made.add_all("Cast", "zero_point", node.inputs[2:3], [integer], to=TensorProto.INT32)
    start = made.constant("held", held.astype(np.int32))
    (step,) = made.add_all("Sub", "moved_by", (start, wide), [integer])
    sums = _sums_of_channels(weights, convolves)
    moved = replace(integer, shape=sums.shape)
    (added,) = made.add_all("Mul", "added", (step, made.constant("weight_sums", sums)), [moved])
    made.add("Add", "moved", np.int32, total, added)
    made.put(node.operator)
    return True


def _weights(network: Network, node: Node) -> Array | None:
    """The constant weights less their zero point, int32; None if they are not constant."""
    weights, zero = (network.constants.get(node.input(index)) for index in (1, 3))
    if weights is None or zero is None:
        return None
    if zero.size == 1:
        zero = zero.reshape(())
    elif node.operator == "ConvInteger" or zero.shape != weights.shape[-1:]:
        return None
    return weights.astype(np.int32) - zero.astype(np.int32)


def _sums_of_channels(weights: Array, convolves: bool) -> Array:
    """The sum of weights of each output channel, in a shape that broadcasts over the results."""
    if not convolves:
        return weights.sum(axis=-2, dtype=np.int32, keepdims=weights.ndim > 2)
    rest = [1] * (weights.ndim - 2)
    return weights.reshape(len(weights), -1).sum(axis=1, dtype=np.int32).reshape(-1, *rest)


def _padded(made: Replacement, node: Node, pads: Any, given: TensorType) -> str:
    """Pad the input of a ConvInteger with its zero point."""
    half = len(pads) // 2
    before, after = [0, 0, *pads[:half]], [0, 0, *pads[half:]]
    assert given.shape is not None
    size = tuple(a + n + b for a, n, b in zip(before, given.shape, after, strict=True))
    amounts = made.constant("pads", np.array([*before, *after], np.int64))
    inputs, padded = (node.inputs[0], amounts, node.inputs[2]), replace(given, shape=size)
    return made.add_all("Pad", "padded", inputs, [padded])[0]
