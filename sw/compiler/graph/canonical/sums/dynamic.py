"""Rules of the canonical form for products of integers whose zero point is known only at run time,
as dynamic quantization makes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from amaranth_vta.sw.compiler.graph.canonical.quantization import BYTE_TYPES
from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.graph.nodes import Node

_PRODUCTS = frozenset({"ConvInteger", "MatMulInteger"})


def write_zero_points(network: Network, node: Node) -> bool:
    """Zero points that a ConvInteger or MatMulInteger leaves out, which are 0, become constants."""
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
    """A ConvInteger or MatMulInteger by constant weights gets the zero point that the machine has
    as 0, and what that changes in its sums is added behind it: Σ (x − z) w = Σ (x − c) w +
    (c − z) · Σ w. Padding, whose value is z, becomes an operator of its own."""
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
    name, info = node.name, network.types[node.outputs[0]]
    made: list[Node] = []

    def add(operator: str, what: str, dtype: Any, shape: Any, *inputs: str, **extra: Any) -> str:
        tensor = network.unused_name(f"{name}_{what}")
        network.types[tensor] = replace(info, dtype=np.dtype(dtype), shape=shape)
        made.append(Node(operator, f"{name}_{what}", inputs, (tensor,), extra))
        return tensor

    source, attributes = node.inputs[0], dict(node.attributes)
    if any(attributes.get("pads", ())):
        pads = attributes.pop("pads")
        source = _padded(network, node, pads, given.shape, add)
    held = np.array(128 if given.dtype == np.uint8 else 0, given.dtype)
    fixed = network.add_constant(f"{name}_held_zero_point", held)
    total = network.unused_name(f"{name}_sums")
    network.types[total] = info
    inputs = (source, node.inputs[1], fixed, node.inputs[3])
    product = replace(node, inputs=inputs, outputs=(total,), attributes=attributes)
    wide = add("Cast", "zero_point", np.int32, zero.shape, node.inputs[2], to=_INT32)
    start = network.add_constant(f"{name}_held", held.astype(np.int32))
    step = add("Sub", "moved_by", np.int32, zero.shape, start, wide)
    sums = _sums_of_channels(weights, convolves)
    added = add(
        *("Mul", "added", np.int32, sums.shape),
        *(step, network.add_constant(f"{name}_weight_sums", sums)),
    )
    made += [product, Node("Add", f"{name}_moved", (total, added), node.outputs)]
    network.nodes.replace(node, made)
    return True


# The number of this type in ONNX.
_INT32 = 6


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
    """For each output channel the sum of its weights, in a shape that broadcasts over results."""
    if not convolves:
        return weights.sum(axis=-2, dtype=np.int32, keepdims=weights.ndim > 2)
    rest = [1] * (weights.ndim - 2)
    return weights.reshape(len(weights), -1).sum(axis=1, dtype=np.int32).reshape(-1, *rest)


def _padded(network: Network, node: Node, pads: Any, shape: tuple[int, ...], add: Any) -> str:
    """The input of a ConvInteger, padded with its zero point."""
    half = len(pads) // 2
    before, after = [0, 0, *pads[:half]], [0, 0, *pads[half:]]
    size = tuple(a + n + b for a, n, b in zip(before, shape, after, strict=True))
    amounts = network.add_constant(f"{node.name}_pads", np.array([*before, *after], np.int64))
    dtype = network.types[node.inputs[0]].dtype
    return str(add("Pad", "padded", dtype, size, node.inputs[0], amounts, node.inputs[2]))
