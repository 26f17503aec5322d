"""Rules of the canonical form that replace operators by simpler ones, which other rules know."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node

from .quantization import BYTE_TYPES, parameters_of


def drop_identity(network: Network, node: Node) -> bool:
    """Removes Identity, Dropout (which does nothing in inference), a Sum of one tensor, a Reshape
    that keeps the shape, and a Transpose that keeps the order."""
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
    if node.operator == "Transpose":
        order = node.attributes.get("perm")
        return order is not None and list(order) == sorted(order)
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
    if not _of_quantized(network, source):
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


def whole_maximum(network: Network, node: Node) -> bool:
    """GlobalMaxPool, or ReduceMax of rows and columns, becomes MaxPool with a window as large as
    the image."""
    if node.domain or node.operator not in ("GlobalMaxPool", "ReduceMax"):
        return False
    shape = network.types[node.inputs[0]].shape
    if shape is None or len(shape) not in (3, 4) or not _of_quantized(network, node.inputs[0]):
        return False
    if node.operator == "ReduceMax" and reduced_axes(network, node) != list(range(2, len(shape))):
        return False
    whole = {"kernel_shape": list(shape[2:])}
    result = node.outputs[0]
    if node.operator == "GlobalMaxPool" or node.attributes.get("keepdims", 1):
        network.nodes.replace(node, [Node("MaxPool", node.name, node.inputs[:1], (result,), whole)])
        return True
    pixel = network.unused_name(f"{result}_pixel")
    sizes = (*shape[:2], *[1] * (len(shape) - 2))
    network.types[pixel] = replace(network.types[result], shape=sizes)
    flat = network.add_constant(f"{node.name}_shape", np.array(shape[:2], np.int64))
    network.nodes.replace(
        node,
        [
            Node("MaxPool", node.name, node.inputs[:1], (pixel,), whole),
            Node("Reshape", f"{node.name}_flat", (pixel, flat), (result,)),
        ],
    )
    return True


def reduced_axes(network: Network, node: Node) -> list[int]:
    """The axes, in order, over which an operator such as ReduceMean goes; empty if unknown."""
    shape = network.types[node.inputs[0]].shape
    axes = node.attributes.get("axes")
    if node.input(1) in network.constants:
        axes = network.constants[node.input(1)].tolist()
    if shape is None or axes is None:
        return []
    return sorted(axis % len(shape) for axis in axes)


def _of_quantized(network: Network, name: str) -> bool:
    """Whether a tensor has 8-bit integers, or is dequantized."""
    maker = network.maker(name)
    of_bytes = network.types[name].dtype in BYTE_TYPES
    return of_bytes or parameters_of(network, maker, "DequantizeLinear") is not None


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
