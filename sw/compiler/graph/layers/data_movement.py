"""Lower operators that only move integers, by the cheapest layer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.graph.channels import chosen_numbers
from amaranth_vta.sw.compiler.graph.index_maps import (
    NoIndexMap,
    index_map,
    is_mover,
    movers_before,
)
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.upsample2d import Upsample2d, upsample2d
from amaranth_vta.sw.runtime.network.tile_layout import tiles

from .channel_selection import (
    chooses_channels,
    chosen_channels,
    concatenation,
    is_of_chosen,
)
from .rearrangement import rearrangement
from .support.layer import Layer, Unsupported
from .support.tensors import Tensors
from .transposition import transposition

# Operators, besides channel selections, that do not move pixels.
_OF_CHANNELS = frozenset({"Concat", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


def concatenating(node: Node, tensors: Tensors) -> Layer:
    """Lower a Concat. Raises `Unsupported`."""
    return _by_channels(concatenation, node, tensors)


def choosing(node: Node, tensors: Tensors) -> Layer:
    """Lower a Gather or a Slice of channels. Raises `Unsupported`."""
    return _by_channels(chosen_channels, node, tensors)


def _by_channels(make: Callable[[Node, Tensors], Layer], node: Node, tensors: Tensors) -> Layer:
    """Lower an operator that selects or joins channels by ``make``; if that is unsupported, or if
    operators before ``node`` move pixels, by `rearrangement`."""
    inner = movers_before(tensors.network, node, tensors.fused)[:-1]
    pixels = [
        item
        for item in inner
        if not (item.operator in _OF_CHANNELS or chooses_channels(item, tensors))
    ]
    if pixels:
        with suppress(Unsupported):
            return rearrangement(node, tensors)
    with suppress(Unsupported):
        return make(node, tensors)
    return rearrangement(node, tensors)


def slicing(node: Node, tensors: Tensors) -> Layer:
    """Lower a Slice: by GEMM if it selects channels within a tile, else by gathering tiles. Raises
    `Unsupported`."""
    chosen = chosen_numbers(node, tensors.network)
    if chosen is not None and not is_of_chosen(node, tensors):
        successive = chosen == list(range(chosen[0], chosen[0] + len(chosen)))
        if successive and chosen[0] % tensors.config.block_out == 0:
            chosen = None
    return rearrangement(node, tensors) if chosen is None else choosing(node, tensors)


def resizing(node: Node, tensors: Tensors) -> Layer:
    """Lower a nearest-neighbor Resize. Raises `Unsupported`."""
    if node.attributes.get("mode", "nearest") != "nearest":
        raise Unsupported("it interpolates between pixels")
    if is_mover(tensors.network, node):
        with suppress(Unsupported, NoIndexMap):
            return _upsampling(node, tensors)
    return rearrangement(node, tensors)


def transposing(node: Node, tensors: Tensors) -> Layer:
    """Lower a Transpose. Raises `Unsupported`."""
    try:
        return transposition(node, tensors)
    except Unsupported as reason:
        if tensors.config.batch > 1 and len(tensors.network.types[node.inputs[0]].shape or ()) == 4:
            with suppress(Unsupported):
                return rearrangement(node, tensors)
        raise reason


def _upsampling(node: Node, tensors: Tensors) -> Layer:
    """Lower nearest-neighbor upsampling by integer factors. Raises `Unsupported`."""
    tensors.require_bytes(node.inputs[0], node.outputs[0])
    image, out = tensors.image(node.inputs[0]), tensors.image(node.outputs[0])
    tensors.require_held(node.inputs[0], image)
    n, c, h, w = image
    down, across = max(out[2] // h, 1), max(out[3] // w, 1)
    if out != (n, c, h * down, w * across):
        raise Unsupported("it does not repeat pixels")
    repeated = np.arange(prod(image)).reshape(image).repeat(down, axis=2).repeat(across, axis=3)
    if not np.array_equal(index_map(tensors.network, [node]).numbers, repeated):
        raise Unsupported("it does not take each pixel equally often")
    config = tensors.config
    workload = Upsample2d(tiles(n, config.batch), tiles(c, config.block_out), h, w, (down, across))
    function = tensors.function(upsample2d, workload, node)
    limits = tensors.range(node.inputs[0])
    sources = [tensors.source(node.inputs[0], image)]
    return tensors.layer((node,), sources, out, function, {}, limits)
