"""Lower transposed convolutions, and convolutions before DepthToSpace. In the canonical form, these
are a QLinearConv with all phases as channels, and operators that interleave the phases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.graph.phases import PIXELS_OF_PHASES
from amaranth_vta.sw.compiler.operators.transposed_conv2d import TransposedConv2d, transposed_conv2d
from amaranth_vta.sw.compiler.tuner.workload import NoScheduleFits
from amaranth_vta.sw.runtime.network.tile_layout import Array, Image, tiles

from .support.layer import Layer, Unsupported
from .support.products import QuantizedProduct
from .support.sums import constants_of
from .support.tensors import Tensors
from .support.tiled_constants import pack_bias, pack_weights


@dataclass(frozen=True)
class _Phases:
    """``nodes`` interleave the phases of ``strides`` into an image, and crop ``before`` rows and
    columns at its start; the result has the shape ``out``."""

    nodes: tuple[Node, ...]
    strides: tuple[int, int]
    before: tuple[int, int]
    out: Image


def transposed_convolution(
    product: QuantizedProduct, tensors: Tensors, image: Image
) -> Layer | None:
    """Lower a QLinearConv of phases with the nodes that interleave them. None if other nodes
    follow, or if the machine can only run the convolution alone."""
    phases = _phases_after(tensors.network, product.nodes[-1].outputs[0])
    if phases is None or product.sums.terms > 1:
        return None
    try:
        return _layer(product, phases, tensors, image)
    except (Unsupported, NoScheduleFits):
        return None


def _layer(product: QuantizedProduct, phases: _Phases, tensors: Tensors, image: Image) -> Layer:
    config, sums, name = tensors.config, product.sums, product.nodes[0].inputs[0]
    if product.zero_point and not config.pad_value:
        raise Unsupported("it pads with its zero point, and the machine with zeros")
    kernel = _kernel(sums.weights, phases.strides)
    pads = product.nodes[0].attributes.get("pads", [0] * 4)
    # The first results of the phases use the taps that reach furthest back.
    before = tuple(
        phases.before[axis] + (sums.weights.shape[2 + axis] - 1 - pads[axis]) * phases.strides[axis]
        for axis in (0, 1)
    )
    if min(before) < 0:
        raise Unsupported("it pads more pixels than its kernel reaches")
    size = kernel.shape[2:]
    cropped = [
        (image[2 + axis] - 1) * phases.strides[axis] + size[axis] - before[axis] - out
        for axis, out in enumerate(phases.out[2:])
    ]
    how, constants = constants_of(sums, config)
    workload = TransposedConv2d(
        batch=tiles(image[0], config.batch),
        inputs=tiles(image[1], config.block_in),
        outputs=tiles(phases.out[1], config.block_out),
        height=image[2],
        width=image[3],
        kernel=(size[0], size[1]),
        requantize=how,
        strides=phases.strides,
        pads=(before[0], before[1], max(cropped[0], 0), max(cropped[1], 0)),
        output_padding=(max(-cropped[0], 0), max(-cropped[1], 0)),
        pad_value=product.zero_point,
    )
    nodes = (*product.nodes, *phases.nodes)
    given = {
        "weights": pack_weights(kernel, config),
        "requantization": pack_bias(_by_phases(constants, phases, config.block_out), config),
    }
    source = tensors.product_input(name, image, tensors.is_held(name, image))
    made = tensors.function(transposed_conv2d, workload, nodes[0])
    macs = prod(image) * phases.out[1] * prod(size)
    layer = tensors.layer(nodes, [source], phases.out, made, given, (sums.low, sums.high), macs)
    # The canonical form names the interleaving nodes after the operator that they come from.
    own = phases.nodes[-1].name == f"{nodes[0].name}_results"
    layer = replace(layer, operator="ConvTranspose" if own else "QLinearConv+DepthToSpace")
    tensors.products[layer.result.tensor] = layer, transposed_conv2d, workload
    return layer


def _phases_after(network: Network, name: str) -> _Phases | None:
    nodes: list[Node] = []
    for operator in ("Reshape", "Transpose", "Reshape", "Slice"):
        node = network.only_reader(name)
        if node is None or node.operator != operator or node.domain:
            return None
        nodes.append(node)
        name = node.outputs[0]
    parts, turned, _, cut = nodes
    shape, out = (network.types[item].shape for item in (parts.outputs[0], name))
    begins, axes = (network.constants.get(cut.inputs[at]) for at in (1, 3))
    if turned.attributes.get("perm") != PIXELS_OF_PHASES or shape is None or out is None:
        return None
    if begins is None or axes is None or axes.tolist() != [2, 3] or len(out) != 4:
        return None
    first, second = begins.tolist()
    return _Phases(
        tuple(nodes), (shape[1], shape[2]), (first, second), (out[0], out[1], out[2], out[3])
    )


def _kernel(phases: Array, strides: tuple[int, int]) -> Array:
    """Weights (outputs, inputs, height, width) of the transposed convolution: the taps of all
    phases, reversed again and interleaved, without trailing rows and columns of zeros."""
    down, right = strides
    _, inputs, *taps = phases.shape
    split = phases.reshape(down, right, -1, inputs, *taps)[..., ::-1, ::-1]
    whole = split.transpose(2, 3, 4, 0, 5, 1).reshape(-1, inputs, taps[0] * down, taps[1] * right)
    rows, columns = (np.flatnonzero(whole.any(axis=other)) for other in ((0, 1, 3), (0, 1, 2)))
    return whole[:, :, : rows.max(initial=0) + 1, : columns.max(initial=0) + 1]


def _by_phases(constants: Array, phases: _Phases, block: int) -> Array:
    """Reorder constants (phases · outputs, …) as (tiles of outputs · phases · BLOCK_OUT, …), the
    phases counted from the first result that is not cropped."""
    (down, right), channels = phases.strides, phases.out[1]
    split = constants.reshape(down, right, channels, *constants.shape[1:])
    split = np.roll(split, [-before for before in phases.before], (0, 1))
    missing = -channels % block
    padded = np.pad(split, [(0, 0)] * 2 + [(0, missing)] + [(0, 0)] * (split.ndim - 3))
    blocks = padded.reshape(down, right, -1, block, *constants.shape[1:])
    return np.moveaxis(blocks, 2, 0).reshape(-1, *constants.shape[1:])
