"""Rules of the canonical form that replace operators by simpler ones, which other rules know."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node

from .quantization import BYTE_TYPES, parameters_of


def drop_identity(network: Network, node: Node) -> bool:
    """Removes Identity, Dropout (which does nothing in inference), a Sum of one tensor, and a
    Reshape that keeps the shape."""
    if node.domain or not node.outputs or not _does_nothing(network, node):
        return False
    source, result = node.inputs[0], node.outputs[0]
    if any(result in reader.captured for reader in network.nodes.readers(result)):
        return False
    if result in network.outputs:
        return _made_as(network, source, result, node)
    network.nodes.remove(node)
    network.rename(result, source)
    return True


def _made_as(network: Network, source: str, result: str, node: Node) -> bool:
    """Lets the maker of ``source``, which ``node`` alone reads, make the output ``result``."""
    maker = network.maker(source)
    if maker is None or network.only_reader(source) is not node:
        return False
    outputs = tuple(result if name == source else name for name in maker.outputs)
    network.nodes.remove(node)
    network.nodes.replace(maker, [replace(maker, outputs=outputs)])
    return True


def _does_nothing(network: Network, node: Node) -> bool:
    if node.operator == "Dropout":
        mask = node.outputs[1] if len(node.outputs) > 1 else ""
        read = bool(mask) and (mask in network.outputs or bool(network.nodes.readers(mask)))
        return not node.input(2) and not read
    if node.operator == "Reshape":
        shapes = [network.types[name].shape for name in (node.inputs[0], node.outputs[0])]
        return shapes[0] is not None and shapes[0] == shapes[1]
    return node.operator == "Identity" or (node.operator == "Sum" and len(node.inputs) == 1)


def sum_of_two(network: Network, node: Node) -> bool:
    """A Sum of two tensors becomes an Add."""
    if node.domain or node.operator != "Sum" or len(node.inputs) != 2:
        return False
    network.nodes.replace(node, [replace(node, operator="Add")])
    return True


def slices_of_split(network: Network, node: Node) -> bool:
    """A Split of integers, or of what is dequantized, becomes a Slice for each part."""
    if node.domain or node.operator != "Split":
        return False
    source = node.inputs[0]
    maker = network.maker(source)
    of_bytes = network.types[source].dtype in BYTE_TYPES
    if not (of_bytes or parameters_of(network, maker, "DequantizeLinear")):
        return False
    shapes = [network.types[name].shape for name in node.outputs if name]
    whole = network.types[source].shape
    if whole is None or any(shape is None for shape in shapes) or not all(node.outputs):
        return False
    axis, begin, made = node.attributes.get("axis", 0) % len(whole), 0, []
    for name, shape in zip(node.outputs, shapes, strict=True):
        end = begin + (shape or ())[axis]
        bounds = [
            network.add_constant(f"{name}_{what}", np.array([value], np.int64))
            for what, value in (("begin", begin), ("end", end), ("axis", axis))
        ]
        made.append(Node("Slice", f"{name}_slice", (source, *bounds), (name,)))
        begin = end
    network.nodes.replace(node, made)
    return True


def merge_reshapes(network: Network, node: Node) -> bool:
    """Two operators in succession that only change the shape become one Reshape."""
    maker = network.maker(node.inputs[0]) if _reshapes(node) else None
    shape = network.types[node.outputs[0]].shape if node.outputs else None
    if maker is None or not _reshapes(maker) or shape is None or 0 in shape:
        return False
    size = network.add_constant(f"{node.name}_shape", np.array(shape, np.int64))
    inputs = (maker.inputs[0], size)
    network.nodes.replace(node, [Node("Reshape", node.name, inputs, node.outputs)])
    return True


def _reshapes(node: Node) -> bool:
    return not node.domain and node.operator in ("Flatten", "Reshape", "Squeeze", "Unsqueeze")


def share_quantize(network: Network, node: Node) -> bool:
    """QuantizeLinear operators of one tensor with the same parameters become one; with the option
    ``DedicatedQDQPair`` of ONNX Runtime's quantizer each reader has one of its own."""
    own = parameters_of(network, node, "QuantizeLinear")
    if own is None or node.outputs[0] in network.outputs:
        return False
    for other in network.nodes.readers(node.inputs[0]):
        parameters = parameters_of(network, other, "QuantizeLinear")
        earlier = network.nodes.place(other) < network.nodes.place(node)
        if earlier and parameters is not None and own.same_as(parameters):
            network.nodes.remove(node)
            network.rename(node.outputs[0], other.outputs[0])
            return True
    return False
