"""Canonicalization rules that replace operators by simpler ones, which other rules match."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import isqrt
from typing import Any

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node

from .quantization import BYTE_TYPES, parameters_of

# Pixels of a max pooling window from which two layers are cheaper: for windows that overlap in both
# directions, and for others.
_OVERLAPPING_WINDOW, _WINDOW = 25, 64
# Operators that quantize blocks, which are matrices in a stack of this rank.
_STEPS = frozenset(
    {"Abs", "Cast", "Div", "Max", "Mul", "ReduceMax", "Reciprocal", "Round", "Transpose"}
)
_STACK = 3


def drop_identity(network: Network, node: Node) -> bool:
    """Remove Identity, Dropout (a no-op in inference), Sum of one tensor, and no-op Reshape,
    Transpose and Cast."""
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
    """Let the producer of ``source``, whose only reader is ``node``, write the output
    ``result``."""
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
    if node.operator == "Cast":
        return network.types[node.inputs[0]].dtype == network.types[node.outputs[0]].dtype
    if node.operator == "Transpose":
        order = node.attributes.get("perm")
        return order is not None and list(order) == sorted(order)
    if node.operator == "Reshape":
        shapes = [network.types[name].shape for name in (node.inputs[0], node.outputs[0])]
        return shapes[0] is not None and shapes[0] == shapes[1]
    return node.operator == "Identity" or (node.operator == "Sum" and len(node.inputs) == 1)


def sum_of_two(network: Network, node: Node) -> bool:
    """Replace a Sum of two tensors by an Add."""
    if node.domain or node.operator != "Sum" or len(node.inputs) != 2:
        return False
    network.nodes.replace(node, [replace(node, operator="Add")])
    return True


def leave_out_empty(network: Network, node: Node) -> bool:
    """Drop the inputs of a Resize (region, scales) that are empty constants."""
    if node.domain or node.operator != "Resize":
        return False
    constants = network.constants
    inputs = tuple("" if n in constants and not constants[n].size else n for n in node.inputs)
    if inputs == node.inputs:
        return False
    network.nodes.replace(node, [replace(node, inputs=inputs)])
    return True


def both_bounds(network: Network, node: Node) -> bool:
    """Add the missing bound of a Clip of 8-bit integers: the limit of their type."""
    if node.domain or node.operator != "Clip":
        return False
    dtype = network.types[node.inputs[0]].dtype
    if dtype not in BYTE_TYPES or (node.input(1) and node.input(2)):
        return False
    limits = np.iinfo(dtype)
    low, high = (
        node.input(index) or network.add_constant(f"{node.name}_{what}", np.array(end, dtype))
        for index, what, end in ((1, "low", limits.min), (2, "high", limits.max))
    )
    network.nodes.replace(node, [replace(node, inputs=(node.inputs[0], low, high))])
    return True


def slices_of_split(network: Network, node: Node) -> bool:
    """Replace a Split of integers, or of a dequantized tensor, by one Slice per part."""
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


def slice_of_gather(network: Network, node: Node) -> bool:
    """Replace a Gather of one index, or of consecutive indices, from integers or a dequantized
    tensor by a Slice, and a Reshape if an axis is removed."""
    if node.domain or node.operator != "Gather" or not _of_quantized(network, node.inputs[0]):
        return False
    indices, result = network.constants.get(node.inputs[1]), node.outputs[0]
    whole, shape = (network.types[name].shape for name in (node.inputs[0], result))
    if indices is None or indices.ndim > 1 or not indices.size or whole is None or shape is None:
        return False
    axis = node.attributes.get("axis", 0) % len(whole)
    chosen = np.where(indices < 0, indices + whole[axis], indices).reshape(-1)
    begin = int(chosen[0])
    within = 0 <= begin <= whole[axis] - chosen.size
    if not within or chosen.tolist() != list(range(begin, begin + chosen.size)):
        return False
    bounds = [
        network.add_constant(f"{node.name}_{what}", np.array([value], np.int64))
        for what, value in (("begin", begin), ("end", begin + chosen.size), ("axis", axis))
    ]
    sliced = result
    if not indices.ndim:
        sliced = network.unused_name(f"{result}_sliced")
        sizes = (*whole[:axis], 1, *whole[axis + 1 :])
        network.types[sliced] = replace(network.types[result], shape=sizes)
    made = [Node("Slice", node.name, (node.inputs[0], *bounds), (sliced,))]
    if not indices.ndim:
        flat = network.add_constant(f"{node.name}_shape", np.array(shape, np.int64))
        made.append(Node("Reshape", f"{node.name}_flat", (sliced, flat), (result,)))
    network.nodes.replace(node, made)
    return True


def whole_maximum(network: Network, node: Node) -> bool:
    """Replace GlobalMaxPool, or ReduceMax over rows and columns, by MaxPool with a window as large
    as the image."""
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


def smaller_windows(network: Network, node: Node) -> bool:
    """Split a MaxPool with large windows into one MaxPool per axis. Split a MaxPool with long
    windows along one axis into a MaxPool over parts of each window and a MaxPool over the parts'
    results."""
    if node.domain or node.operator != "MaxPool" or len(node.outputs) != 1:
        return False
    given, made = (network.types[name].shape for name in (node.inputs[0], node.outputs[0]))
    if given is None or made is None or len(given) != 4:
        return False
    if not _of_quantized(network, node.inputs[0]):
        return False
    kernel, between = list(node.attributes["kernel_shape"]), list(given)
    if min(kernel) > 1:
        strides = node.attributes.get("strides", [1, 1])
        overlap = made[2:] != (1, 1) and all(s < k for s, k in zip(strides, kernel, strict=True))
        if kernel[0] * kernel[1] < (_OVERLAPPING_WINDOW if overlap else _WINDOW):
            return False
        first, second = _along(node, 0), _along(node, 1)
        between[2] = made[2]
    else:
        axis = int(kernel[1] > 1)
        parts = _parts_of_window(node, axis, given[2 + axis], made[2 + axis])
        if parts is None:
            return False
        first, second, between[2 + axis] = parts
    inner = network.unused_name(f"{node.outputs[0]}_inner")
    network.types[inner] = replace(network.types[node.outputs[0]], shape=tuple(between))
    network.nodes.replace(
        node,
        [
            Node("MaxPool", f"{node.name}_inner", node.inputs, (inner,), first),
            Node("MaxPool", node.name, (inner,), node.outputs, second),
        ],
    )
    return True


def _along(node: Node, axis: int) -> dict[str, Any]:
    """The attributes of a pooling whose windows extend along ``axis`` only."""
    own = {name: [1, 1] for name in ("kernel_shape", "strides", "dilations")}
    for name, values in own.items():
        values[axis] = node.attributes.get(name, values)[axis]
    if "pads" in node.attributes:
        pads = node.attributes["pads"]
        own["pads"] = [amount if index % 2 == axis else 0 for index, amount in enumerate(pads)]
    return {**node.attributes, **own}


def _parts_of_window(
    node: Node, axis: int, size: int, made: int
) -> tuple[dict[str, Any], dict[str, Any], int] | None:
    """Split a pooling along ``axis`` from ``size`` to ``made`` pixels in two. Returns the
    attributes of both, and the number of pixels in between; None if the windows are short, dilated,
    padded automatically, or reach too far into the padding."""
    length, stride, dilation = (
        node.attributes.get(name, [1, 1])[axis] for name in ("kernel_shape", "strides", "dilations")
    )
    begin, end = node.attributes.get("pads", [0] * 4)[axis::2]
    if length < _WINDOW or dilation != 1 or node.attributes.get("ceil_mode", 0):
        return None
    if node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    if made == 1 and not begin and length == size:
        # Disjoint parts; the last one may extend beyond the image.
        part = isqrt(length - 1) + 1
        count = -(-length // part)
        first = {"kernel": part, "stride": part, "end": count * part - length}
        second = {"kernel": count}
    else:
        part = length // 2 + 1
        if max(begin, end) >= part:
            return None
        count = size + begin + end - part + 1
        first = {"kernel": part, "begin": begin, "end": end}
        second = {"kernel": length - part + 1, "stride": stride}
    return _line(axis, **first), _line(axis, **second), count


def _line(axis: int, kernel: int, stride: int = 1, begin: int = 0, end: int = 0) -> dict[str, Any]:
    """The attributes of a pooling along ``axis``."""
    pairs = {"kernel_shape": (kernel, 1), "strides": (stride, 1)}
    pads = (begin, 0, end, 0) if axis == 0 else (0, begin, 0, end)
    own = {name: list(pair if axis == 0 else pair[::-1]) for name, pair in pairs.items()}
    return {**own, "pads": list(pads)}


def reduced_axes(network: Network, node: Node) -> list[int]:
    """The sorted axes of a reduction such as ReduceMean; empty if unknown."""
    shape = network.types[node.inputs[0]].shape
    axes = node.attributes.get("axes")
    if node.input(1) in network.constants:
        axes = network.constants[node.input(1)].tolist()
    if shape is None or axes is None:
        return []
    return sorted(axis % len(shape) for axis in axes)


def _of_quantized(network: Network, name: str) -> bool:
    """Whether a tensor has 8-bit integers or is dequantized."""
    maker = network.maker(name)
    of_bytes = network.types[name].dtype in BYTE_TYPES
    return of_bytes or parameters_of(network, maker, "DequantizeLinear") is not None


def merge_reshapes(network: Network, node: Node) -> bool:
    """Merge two successive operators that only change the shape into one Reshape."""
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
    """Merge QuantizeLinear of one tensor with equal parameters. With the option
    ``DedicatedQDQPair``, ONNX Runtime's quantizer writes one per reader."""
    own = parameters_of(network, node, "QuantizeLinear")

    def is_equal(other: Node) -> bool:
        parameters = parameters_of(network, other, "QuantizeLinear")
        return own is not None and parameters is not None and own.same_as(parameters)

    return own is not None and _share(network, node, is_equal)


def share_view(network: Network, node: Node) -> bool:
    """Merge views of one tensor with the same shape: queries, keys and values of one sequence are
    products of the same rows."""
    shape = network.types[node.outputs[0]].shape if _reshapes(node) else None

    def is_equal(other: Node) -> bool:
        result = other.outputs[0] if _reshapes(other) else None
        return result is not None and network.types[result].shape == shape

    return shape is not None and _share(network, node, is_equal)


def share_step(network: Network, node: Node) -> bool:
    """Merge equal float operators on matrices of one tensor: products of the same rows by weights
    in blocks quantize the same blocks."""
    info = network.types.get(node.input(0))
    if node.domain or node.operator not in _STEPS or info is None or info.dtype != np.float32:
        return False
    if info.shape is None or len(info.shape) != _STACK:
        return False

    def is_equal(other: Node) -> bool:
        if (other.operator, other.domain) != (node.operator, "") or len(other.outputs) > 1:
            return False
        if other.attributes != node.attributes or len(other.inputs) != len(node.inputs):
            return False
        return all(map(partial(_same, network), other.inputs, node.inputs))

    return _share(network, node, is_equal)


def _same(network: Network, first: str, second: str) -> bool:
    """Whether two names are those of one tensor, or of equal constants."""
    if first == second:
        return True
    a, b = network.constants.get(first), network.constants.get(second)
    return a is not None and b is not None and a.dtype == b.dtype and np.array_equal(a, b)


def _share(network: Network, node: Node, is_equal: Callable[[Node], bool]) -> bool:
    """Replace ``node`` by an earlier reader of its first input that ``is_equal``."""
    if node.outputs[0] in network.outputs:
        return False
    place = network.nodes.place
    for other in network.nodes.readers(node.inputs[0]):
        is_first = other.inputs[0] == node.inputs[0] and place(other) < place(node)
        if is_first and is_equal(other):
            network.nodes.remove(node)
            network.rename(node.outputs[0], other.outputs[0])
            return True
    return False
