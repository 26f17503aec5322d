"""Canonicalization rules for SpaceToDepth, DepthToSpace and equivalent chains of operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.graph.index_maps import NoIndexMap, index_map, is_mover, movers_before
from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.graph.phases import PIXELS_OF_PHASES

from .quantization import BYTE_TYPES, parameters_of

# Size limit of the tensors that are searched for blocks.
_MOST_ELEMENTS = 1 << 24
_VIEWS = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
# Channels per tile of a machine of the usual size.
_BLOCK = 16


def block_of_reshapes(network: Network, node: Node) -> bool:
    """Replace Reshape → Transpose → Reshape of integers that rearrange channels into blocks of
    pixels by DepthToSpace, after a Gather of channels if needed; and the inverse by SpaceToDepth,
    before a Gather if needed."""
    turned = network.maker(node.inputs[0]) if _is(node, "Reshape") else None
    before = network.maker(turned.inputs[0]) if turned and _is(turned, "Transpose") else None
    if turned is None or before is None or not _is(before, "Reshape"):
        return False
    source, result = before.inputs[0], node.outputs[0]
    parts = network.types[turned.inputs[0]].shape
    shape, out = network.types[source].shape, network.types[result].shape
    if network.types[source].dtype not in BYTE_TYPES or parts is None:
        return False
    if shape is None or out is None or len(shape) != 4 or len(out) != 4 or shape[0] != out[0]:
        return False
    size = max(out[2] // max(shape[2], 1), shape[2] // max(out[2], 1))
    if size < 2 or not 0 < prod(shape) <= _MOST_ELEMENTS:
        return False
    order = turned.attributes.get("perm", list(range(len(parts)))[::-1])
    if order == PIXELS_OF_PHASES and _is(network.only_reader(result), "Slice"):
        return False  # interleaved phases of a transposed convolution
    moved = np.arange(prod(shape)).reshape(parts).transpose(order).reshape(out)
    made = (
        _depth_to_space(network, node, source, moved, size)
        if out[2] > shape[2]
        else _space_to_depth(network, node, source, moved, size)
    )
    if made is None:
        return False
    network.nodes.replace(node, made)
    return True


def _depth_to_space(
    network: Network, node: Node, source: str, moved: Array, size: int
) -> list[Node] | None:
    shape, result = network.types[source].shape or (), node.outputs[0]
    whole = np.arange(moved.size).reshape(shape)
    if shape[1] % size**2:
        return None
    attributes = {"blocksize": size}
    for mode in ("DCR", "CRD"):
        if np.array_equal(_blocks(whole, size, mode), moved):
            made = Node(
                "DepthToSpace", node.name, (source,), (result,), {**attributes, "mode": mode}
            )
            return [made]
    corners = moved[0, :, :size, :size].transpose(1, 2, 0).reshape(-1)
    chosen = corners // prod(shape[2:])
    if chosen.max() >= shape[1] or not np.array_equal(
        _blocks(whole[:, chosen], size, "DCR"), moved
    ):
        return None
    gathered = network.unused_name(f"{result}_channels")
    network.types[gathered] = network.types[source]
    return [
        _gather(network, f"{node.name}_channels", source, chosen, gathered),
        Node("DepthToSpace", node.name, (gathered,), (result,), attributes),
    ]


def _space_to_depth(
    network: Network, node: Node, source: str, moved: Array, size: int
) -> list[Node] | None:
    shape, result = network.types[source].shape or (), node.outputs[0]
    found = _block_channels(moved, shape, size)
    if found is None:
        return None
    attributes = {"blocksize": size}
    channels, rows, columns = found
    chosen = (rows * size + columns) * shape[1] + channels
    if np.array_equal(chosen, np.arange(len(chosen))):
        return [Node("SpaceToDepth", node.name, (source,), (result,), attributes)]
    blocks = network.unused_name(f"{result}_blocks")
    network.types[blocks] = network.types[result]
    return [
        Node("SpaceToDepth", node.name, (source,), (blocks,), attributes),
        _gather(network, f"{node.name}_channels", blocks, chosen, result),
    ]


def _gather(network: Network, name: str, source: str, chosen: Array, result: str) -> Node:
    indices = network.add_constant(f"{name}_indices", chosen.astype(np.int64))
    return Node("Gather", name, (source, indices), (result,), {"axis": 1})


def _blocks(x: Array, size: int, mode: str) -> Array:
    """DepthToSpace of images (N, C, H, W)."""
    n, _, h, w = x.shape
    if mode == "DCR":
        split = x.reshape(n, size, size, -1, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        split = x.reshape(n, -1, size, size, h, w).transpose(0, 1, 4, 2, 5, 3)
    return split.reshape(n, -1, h * size, w * size)


def _block_channels(
    numbers: Array, shape: Sequence[int], size: int
) -> tuple[Array, Array, Array] | None:
    """For each channel of a result, the source channel, and the row and column within a block of
    ``size``. ``numbers`` are the result's element indices in images of ``shape``. None unless the
    result is SpaceToDepth with channels in some order."""
    if (
        tuple(numbers.shape) != (shape[0], shape[1] * size**2, shape[2] // size, shape[3] // size)
        or shape[2] % size
        or shape[3] % size
    ):
        return None
    first = numbers[0, :, 0, 0]
    if first.min() < 0 or len(np.unique(first)) < len(first):
        return None
    _, channels, rows, columns = np.unravel_index(first, shape)
    if max(rows.max(), columns.max()) >= size:
        return None
    whole = np.arange(prod(shape)).reshape(shape)
    pixels = whole.reshape(*shape[:2], shape[2] // size, size, shape[3] // size, size)
    if not np.array_equal(pixels[:, channels, :, rows, :, columns].swapaxes(0, 1), numbers):
        return None
    return channels, rows, columns


def fold_space_to_depth(network: Network, node: Node) -> bool:
    """Fold SpaceToDepth (also as the four Slices and Concat of YOLOv5's Focus) into the QLinearConv
    that reads it: kernel, strides and pads are multiplied by the block size. The rule applies if
    the host writes the image, or if the machine needs no more products."""
    maker = network.maker(node.inputs[0]) if _is(node, "QLinearConv") else None
    if (
        maker is None
        or not is_mover(network, maker)
        or network.only_reader(maker.outputs[0]) is None
    ):
        return False
    weights, attributes = network.constants.get(node.inputs[3]), dict(node.attributes)
    plain = attributes.pop("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    if weights is None or weights.ndim != 4 or not plain or attributes.get("group", 1) != 1:
        return False
    if any(step != 1 for step in attributes.get("dilations", ())):
        return False
    nodes = movers_before(network, maker)
    if all(item.operator in _VIEWS for item in nodes):
        return False  # keep an image flattened for a fully connected layer
    read = {name for item in nodes for name in item.reads} - network.constants.keys()
    sources = read - {name for item in nodes for name in item.outputs}
    out = network.types[node.inputs[0]].shape
    if len(sources) != 1 or out is None or len(out) != 4:
        return False
    (source,) = sources
    shape = network.types[source].shape
    if shape is None or len(shape) != 4 or not 0 < out[2] < shape[2]:
        return False
    size, first = shape[2] // out[2], network.maker(source)
    made_by_host = first is None or first.operator == "QuantizeLinear"
    tiles = -(-shape[1] // _BLOCK) * size**2, -(-shape[1] * size**2 // _BLOCK)
    if not made_by_host and tiles[0] > tiles[1]:
        return False
    try:
        numbers = index_map(network, nodes).numbers
    except NoIndexMap:
        return False
    found = _block_channels(numbers, shape, size)
    if found is None:
        return False
    channels, rows, columns = found
    outputs, _, height, width = weights.shape
    wide = np.empty((outputs, shape[1], height, size, width, size), weights.dtype)
    wide[:, channels, :, rows, :, columns] = weights.swapaxes(0, 1)
    kernel: Array = wide.reshape(outputs, shape[1], height * size, width * size)
    attributes["kernel_shape"] = list(kernel.shape[2:])
    for what, usual in (("strides", [1, 1]), ("pads", [0] * 4)):
        attributes[what] = [size * amount for amount in attributes.get(what, usual)]
    name = network.add_constant(f"{node.inputs[3]}_blocks", kernel)
    inputs = (source, *node.inputs[1:3], name, *node.inputs[4:])
    network.nodes.replace(node, [replace(node, inputs=inputs, attributes=attributes)])
    return True


def hoist_over_slices(network: Network, node: Node) -> bool:
    """Hoist QuantizeLinear with equal parameters over the Slices of one tensor, if the quantized
    slices have at least as many elements as the tensor, as in the Focus of a float image."""
    parameters = parameters_of(network, node, "QuantizeLinear")
    if parameters is None or not parameters.per_tensor or parameters.zero.dtype not in BYTE_TYPES:
        return False
    source = node.inputs[0]
    while _is(maker := network.maker(source), "Slice"):
        assert maker is not None
        source = maker.inputs[0]
    whole = network.types[source]
    slices: list[Node] = []
    quantizers: list[Node] = []
    names = [source]
    while names:
        name = names.pop()
        for reader in network.nodes.readers(name):
            own = parameters_of(network, reader, "QuantizeLinear")
            if name != source and own is not None and own.same_as(parameters):
                quantizers.append(reader)
            elif _is(reader, "Slice") and reader.inputs[0] == name:
                slices.append(reader)
                names.append(reader.outputs[0])
            else:
                return False
    shapes = [network.types[item.inputs[0]].shape for item in quantizers]
    if whole.shape is None or any(shape is None for shape in shapes):
        return False
    if not slices or sum(prod(shape or ()) for shape in shapes) < prod(whole.shape):
        return False
    if network.outputs and {source, *(item.outputs[0] for item in slices)} & {*network.outputs}:
        return False
    made = {source: network.unused_name(f"{source}_integer")}
    network.types[made[source]] = replace(whole, dtype=parameters.zero.dtype)
    first = replace(node, inputs=(source, *node.inputs[1:]), outputs=(made[source],))
    for item in slices:
        (result,) = item.outputs
        own_quantizers = [quantizer for quantizer in quantizers if quantizer.inputs[0] == result]
        name = own_quantizers[0].outputs[0] if own_quantizers else ""
        made[result] = name or network.unused_name(f"{result}_integer")
        info = network.types[result]
        network.types[made[result]] = replace(info, dtype=parameters.zero.dtype)
    for quantizer in quantizers:
        network.nodes.remove(quantizer)
        if quantizer.outputs[0] != made[quantizer.inputs[0]]:
            network.rename(quantizer.outputs[0], made[quantizer.inputs[0]])
    for number, item in enumerate(slices):
        sliced = replace(
            item, inputs=(made[item.inputs[0]], *item.inputs[1:]), outputs=(made[item.outputs[0]],)
        )
        network.nodes.replace(item, [sliced] if number else [first, sliced])
    return True


def _is(node: Node | None, operator: str) -> bool:
    return node is not None and node.operator == operator and not node.domain
