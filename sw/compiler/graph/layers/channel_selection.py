"""Lower operators that reorder channels: Concat, Gather, and Slice within tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.graph.channels import axis_of, chosen_numbers, is_of_channels
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.building_blocks.identity import reads_what_it_stores
from amaranth_vta.sw.compiler.operators.concatenate import Concatenate, concatenate
from amaranth_vta.sw.compiler.operators.select_channels import (
    Band,
    SelectChannels,
    select_channels,
    selection_weights,
)
from amaranth_vta.sw.runtime.network.tile_layout import Image, tiles
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes
from amaranth_vta.sw.runtime.scalars import pack

from .support.layer import ByteRun, Layer, Unsupported
from .support.tensors import Tensors

# A tensor and the index of one of its channels.
Channel = tuple[str, int]


def concatenation(node: Node, tensors: Tensors) -> Layer:
    """Lower a Concat of images, sequences or rows along channels. Raises `Unsupported`."""
    tensors.require_bytes(*node.inputs, node.outputs[0])
    images = [_joined(tensors, name, node.attributes["axis"]) for name in node.inputs]
    (n, _, h, w), config = images[0], tensors.config
    channels = tuple(image[1] for image in images)
    workload = Concatenate(tiles(n, config.batch), channels, h * w)
    if not workload.fills_tiles(config) or len(set(node.inputs)) < len(node.inputs):
        every = zip(node.inputs, channels, strict=True)
        return _selection(node, tensors, [(name, c) for name, count in every for c in range(count)])
    function = tensors.function(concatenate, workload, node)
    lows, highs = zip(*(tensors.range(name) for name in node.inputs), strict=True)
    sources = map(tensors.source, node.inputs, images)
    out = n, sum(channels), h, w
    layer = tensors.layer((node,), sources, out, function, {}, (min(lows), max(highs)))
    image = [item.nbytes // workload.batch for item in layer.sources]
    runs = (
        ByteRun(number, at * size, size)
        for at in range(workload.batch)
        for number, size in enumerate(image)
    )
    return replace(layer, runs=tuple(runs))


def chosen_channels(node: Node, tensors: Tensors) -> Layer:
    """Lower a Gather or a Slice that selects channels of a layer's result in any order. A Concat or
    another Gather before it is bypassed if all its readers are such operators. Raises
    `Unsupported`."""
    chosen = chosen_numbers(node, tensors.network)
    if chosen is None:
        raise Unsupported("it does not choose channels by constant indices")
    tensors.require_made(node.inputs[0])
    tensors.require_bytes(node.inputs[0], node.outputs[0])
    return _selection(node, tensors, _origins(node, tensors, chosen))


def is_of_chosen(node: Node, tensors: Tensors) -> bool:
    """Whether ``node`` reads channels that a Gather has reordered."""
    maker = tensors.network.maker(node.inputs[0])
    return maker is not None and maker.operator == "Gather" and chooses_channels(maker, tensors)


def chooses_channels(node: Node, tensors: Tensors) -> bool:
    """Whether ``node`` is a Gather or a Slice of channels only, by constant indices."""
    return chosen_numbers(node, tensors.network) is not None


def require_selection(tensors: Tensors) -> None:
    """Raise `Unsupported` if the machine cannot move channels within tiles."""
    if not reads_what_it_stores(tensors.env):
        config, env = tensors.config, tensors.env
        raise Unsupported(
            f"it moves channels within tiles of {config.block_out} {env.out_dtype}, and "
            f"GEMM reads tiles of {config.block_in} {env.inp_dtype}"
        )


def selection(
    workload: SelectChannels, node: Node, tensors: Tensors
) -> tuple[Callable[[], Function], dict[str, Bytes]]:
    """The function that selects channels, named after ``node``, and its constants. Raises
    `Unsupported`."""
    require_selection(tensors)
    band, config = Band(workload, tensors.config.block_out), tensors.config
    count = band.outputs * band.width
    if count > config.wgt.depth:
        raise Unsupported(
            f"channels change their places within tiles in {count:,} products per pixel, whose "
            f"weights do not fit the machine, which holds {config.wgt.depth:,}"
        )
    function = tensors.function(select_channels, workload, node)
    weights = selection_weights(workload, config)
    return function, {"places": pack(weights, tensors.env.wgt_dtype)}


def _joined(tensors: Tensors, name: str, axis: int) -> Image:
    """The shape of a tensor as images with ``axis`` as channels: the second axis of images and
    sequences (N, C, L), the last axis of rows. Raises `Unsupported` for other axes."""
    shape = tensors.network.types[name].shape
    if shape is None:
        raise Unsupported(f"the shape of {name} is known only at run time")
    if len(shape) not in (2, 3, 4):
        raise Unsupported(f"{name} has the shape {shape}, which has not two to four dimensions")
    if not is_of_channels(len(shape), axis):
        raise Unsupported("it concatenates along another axis than channels")
    rank = len(shape)
    if rank == 4:
        image = tensors.image(name)
    elif rank == 3 and axis % rank == 1:
        image = (shape[0], shape[1], 1, shape[2])
    else:
        image = tensors.rows(name)
    tensors.require_held(name, image)
    return image


def _origins(node: Node, tensors: Tensors, chosen: Sequence[int]) -> list[Channel]:
    """Trace the channels ``chosen`` of the input of ``node`` back through Concat and Gather."""
    network, name, axis = tensors.network, node.inputs[0], axis_of(node, tensors.network)
    maker = network.maker(name)
    readers = network.nodes.readers(name)
    alone = name not in network.outputs and all(
        chooses_channels(item, tensors) and axis_of(item, tensors.network) == axis
        for item in readers
    )
    if not alone or maker is None or axis_of(maker, tensors.network) != axis or axis is None:
        return [(name, number) for number in chosen]
    if maker.operator == "Gather":
        before = chosen_numbers(maker, tensors.network)
        if before is None or tensors.root(maker.inputs[0]) not in tensors.results:
            return [(name, number) for number in chosen]
        return _origins(maker, tensors, [before[number] for number in chosen])
    if maker.operator != "Concat":
        return [(name, number) for number in chosen]
    parts = [
        (part, number)
        for part in maker.inputs
        for number in range((network.types[part].shape or ())[axis])
    ]
    return [parts[number] for number in chosen]


def _selection(node: Node, tensors: Tensors, chosen: Sequence[Channel]) -> Layer:
    """The layer whose result has the channels ``chosen``, in this order."""
    config, axis = tensors.config, axis_of(node, tensors.network)
    assert axis is not None
    names = list(dict.fromkeys(name for name, _ in chosen))
    images = [_joined(tensors, name, axis) for name in names]
    counts = [image[1] for image in images]
    begins = {name: sum(counts[:at]) for at, name in enumerate(names)}
    n, _, h, w = images[0]
    numbers = tuple(begins[name] + number for name, number in chosen)
    workload = SelectChannels(tiles(n, config.batch), tuple(counts), h * w, numbers)
    function, constants = selection(workload, node, tensors)
    lows, highs = zip(*map(tensors.range, names), strict=True)
    sources = map(tensors.source, names, images)
    limits = min(lows), max(highs)
    out = n, len(chosen), h, w
    layer = tensors.layer((node,), sources, out, function, constants, limits)
    tensors.products[layer.result.tensor] = layer, select_channels, workload
    return layer
