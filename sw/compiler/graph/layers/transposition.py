"""Lower Transpose as a permutation of tiles: elements keep their positions within tiles."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.graph.canonical.integer_averages import AVERAGES
from amaranth_vta.sw.compiler.graph.elementwise import is_elementwise
from amaranth_vta.sw.compiler.graph.integer_operators import (
    DOMAIN,
    LAYER_NORMALIZATION,
    RMS_NORMALIZATION,
    ROW_ROTATION,
    ROW_SOFTMAX,
)
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import MICROSOFT, Node
from amaranth_vta.sw.compiler.graph.second_factor import SECOND_FACTOR
from amaranth_vta.sw.compiler.operators.dense import Dense
from amaranth_vta.sw.compiler.operators.permute import Permute, permute
from amaranth_vta.sw.compiler.tuner.workload import is_faster
from amaranth_vta.sw.runtime.network.tile_layout import Image, tiles

from .stored_factors import may_be_stored
from .support.layer import Layer, Unsupported
from .support.tensors import Tensors

Shape = tuple[int, ...]
# Operators that read integers on the machine, besides products and operators of com.microsoft.
_READERS = frozenset({"Clip", "Concat", "Gather", "Max", "MaxPool", "Min", "Pad", "Resize"})
_ROW_OPERATORS = frozenset({LAYER_NORMALIZATION, RMS_NORMALIZATION, ROW_ROTATION, ROW_SOFTMAX})
_MOST_DIMENSIONS = 4


def transposition(node: Node, tensors: Tensors) -> Layer:
    """Lower a Transpose that preserves channels: images to rows of channels, rows to images, and
    attention heads, with the Reshape that splits channels into heads before it or joins them after
    it. Raises `Unsupported`."""
    network, config = tensors.network, tensors.config
    tensors.require_bytes(node.inputs[0], node.outputs[0])
    shape, result = (network.types[name].shape for name in (node.inputs[0], node.outputs[0]))
    if shape is None or result is None:
        raise Unsupported("its shape is not fixed")
    source, image, channels = source_of(node, tensors, shape)
    if config.batch > 1:
        raise Unsupported(f"tiles hold {config.batch} images or rows, whose order it changes")
    order = node.attributes.get("perm", list(range(len(shape)))[::-1])
    nodes, out = _result(node, tensors, list(order).index(channels), result)
    if not _is_for_machine(network, nodes[-1].outputs[0], config):
        raise Unsupported("only the host reads its result")
    sizes = [*shape]
    sizes[channels] = tiles(shape[channels], config.block_out)
    workload = _without_ones(sizes, order)
    between = [] if source == node.inputs[0] else [network.maker(node.inputs[0])]
    if fused := _fused(source, [*filter(None, between), *nodes], workload, out, tensors):
        return fused
    function = tensors.function(permute, workload, node)
    given = [tensors.source(source, image)]
    return tensors.layer(nodes, given, out, function, {}, tensors.range(source))


def _fused(
    source: str, nodes: Sequence[Node], workload: Permute, out: Image, tensors: Tensors
) -> Layer | None:
    """Fuse a permutation with the layer that produces ``source``, which then stores its results in
    this order. None if it cannot, or if nodes besides ``nodes`` read them."""
    root = tensors.root(source)
    known = tensors.products.get(root)
    if known is None or not tensors.is_only_read_by(root, nodes):
        return None
    anchor, make, made = known
    if not isinstance(made, Dense):
        return None
    stored = made.permuted(workload)
    if stored is None or not is_faster(stored, (made, workload), tensors.config):
        return None
    function = tensors.function(make, stored, anchor.nodes[0])
    limits = tensors.range(source)
    layer = tensors.extended(anchor, nodes, "Transpose", function, limits, out)
    tensors.products[layer.result.tensor] = layer, make, stored
    return layer


def source_of(node: Node, tensors: Tensors, shape: Shape) -> tuple[str, Image, int]:
    """The tensor held by the machine, its shape there, and the axis of ``shape``, the shape that
    ``node`` reads, with the channels."""
    network, source = tensors.network, node.inputs[0]
    rows: Image = (prod(shape[:-1]), shape[-1], 1, 1)
    if tensors.root(source) in tensors.results:
        image = tensors.images[tensors.root(source)]
        if image == rows:
            return source, image, len(shape) - 1
        if len(shape) > 1 and image[:2] == shape[:2] and prod(image[2:]) == prod(shape[2:]):
            return source, image, 1
        raise Unsupported(f"its input is held as an image of {list(image)}")
    maker = network.maker(source)
    if maker is None or maker.operator != "Reshape" or maker.domain:
        raise tensors.not_made(source)
    source = maker.inputs[0]
    before = network.types[source].shape
    tensors.require_made(source)
    if before is None:
        raise Unsupported(f"the shape of {source} is known only at run time")
    image = tensors.images[tensors.root(source)]
    whole = shape[-2] * shape[-1] if len(shape) > 1 else 0
    if image != (prod(shape[:-2]), whole, 1, 1) or shape[-1] % tensors.config.block_out:
        raise Unsupported("channels would change their places within tiles")
    return source, image, len(shape) - 1


def _result(
    node: Node, tensors: Tensors, channels: int, shape: Shape
) -> tuple[tuple[Node, ...], Image]:
    """The nodes of the layer, and the shape in which the machine holds their result. The channels
    are axis ``channels`` of ``shape``."""
    if channels == len(shape) - 1:
        rows: Image = (prod(shape[:-1]), shape[-1], 1, 1)
        reader = tensors.network.only_reader(node.outputs[0])
        joined = reader is not None and reader.operator == "Reshape" and not reader.domain
        if reader is not None and joined and shape[-1] % tensors.config.block_out == 0:
            whole: Image = (prod(shape[:-2]), prod(shape[-2:]), 1, 1)
            joined_shape = tensors.network.types[reader.outputs[0]].shape or ()
            if joined_shape == whole or joined_shape[-1:] == whole[1:2]:
                return (node, reader), whole
        return (node,), rows
    if channels != 1 or len(shape) > _MOST_DIMENSIONS:
        raise Unsupported("channels would change their places within tiles")
    first, second, *pixels = shape
    height, width = [1, *pixels][-2:]  # a sequence is an image of one row
    return (node,), (first, second, height, width)


def _without_ones(sizes: list[int], order: list[int]) -> Permute:
    """The permutation ``order`` of axes of these ``sizes``, with axes of size one removed."""
    kept = [axis for axis, size in enumerate(sizes) if size > 1] or [0]
    return Permute(
        tuple(sizes[axis] for axis in kept),
        tuple(kept.index(axis) for axis in order if axis in kept),
    )


def _is_for_machine(network: Network, name: str, config: Config) -> bool:
    """Whether an operator that the machine may run reads integers from ``name``. Second factors of
    products count if they do not pass through the host."""
    if may_be_stored(network, name, config):
        return True
    for reader in network.nodes.readers(name):
        if reader.domain == MICROSOFT or reader.operator in _READERS:
            return True
        if reader.domain == DOMAIN and reader.operator in _ROW_OPERATORS:
            return True
        if (reader.domain, reader.operator) in SECOND_FACTOR and reader.inputs[0] == name:
            return True
        if reader.operator == "Reshape" and _is_for_machine(network, reader.outputs[0], config):
            return True
        if reader.operator == "DequantizeLinear" and any(
            is_elementwise(item) or item.operator in (*AVERAGES, "QuantizeLinear")
            for item in network.nodes.readers(reader.outputs[0])
        ):
            return True
    return False
