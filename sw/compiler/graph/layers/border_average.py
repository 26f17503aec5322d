"""Lower average pools whose border windows count fewer pixels. In the canonical form, these are one
QLinearConv per pixel count, and Where operators that select among the results."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.average_pool2d import average_pool2d
from amaranth_vta.sw.compiler.operators.building_blocks.exact_constants import sum_constants
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import (
    Array,
    FixedPoint,
    NotExact,
)
from amaranth_vta.sw.runtime.network.packing import Window
from amaranth_vta.sw.runtime.network.tile_layout import Image
from amaranth_vta.sw.runtime.scalars import pack

from .pooling import average_workload, rounding_of_all
from .support.layer import Layer, Unsupported
from .support.products import QuantizedProduct
from .support.sums import RequantizedSums
from .support.tensors import Tensors

# Input position of the output scale of QLinearConv.
_SCALE = 6


@dataclass(frozen=True)
class _Choice:
    """A border average: its ``nodes``, the convolutions ``makers``, and ``chosen``, int64 (height,
    width), the index of the convolution that produces each result."""

    nodes: tuple[Node, ...]
    makers: tuple[Node, ...]
    chosen: Array


def is_chosen_from(network: Network, node: Node) -> bool:
    """Whether a Where is the only reader of the result of ``node``."""
    reader = network.only_reader(node.outputs[0])
    return reader is not None and reader.operator == "Where" and not reader.domain


def border_average(
    product: QuantizedProduct, tensors: Tensors, moved: Window, image: Image, out: Image
) -> Layer:
    """Lower an average that `is_chosen_from`, with its Where. Raises `Unsupported`."""
    node, config = product.nodes[0], tensors.config
    if not config.requantize:
        raise Unsupported(
            "its windows at the border count fewer pixels, and the machine has no REQUANTIZE"
        )
    reader = tensors.network.only_reader(node.outputs[0])
    if reader is not None and reader.inputs[1] == node.outputs[0]:
        raise Unsupported("other windows of this average are on the host")
    found = _choice(tensors.network, node, out)
    if found is None:
        raise Unsupported("it chooses from averages of different windows")
    tensors.require_held(node.inputs[0], image)
    limits, clip = tensors.clip_after(found.nodes[-1].outputs[0])
    sums = [QuantizedProduct.of(maker, tensors).sums for maker in found.makers]
    constants = [_constants(item, limits, product, moved) for item in sums]
    alike = average_workload(product, tensors, moved, image, constants[0].without_parameters())
    workload = replace(alike, by_result=True)
    parameters = np.stack([item.parameters(tensors.env)[1:] for item in constants])[found.chosen]
    identity = tensors.identity_constant() if workload.by_gemm(tensors.env) else {}
    layer = tensors.layer(
        (*found.nodes, *clip),
        [tensors.source(node.inputs[0], image)],
        out,
        tensors.function(average_pool2d, workload, node),
        identity | {"factors": pack(parameters, tensors.env.acc_dtype)},
        limits,
    )
    return replace(layer, operator="AveragePool")


def _constants(
    sums: RequantizedSums, limits: tuple[int, int], product: QuantizedProduct, moved: Window
) -> FixedPoint:
    zeros, scale = (product.zero_point, product.sums.zero_point), sums.scale[0]
    rounding = rounding_of_all(sums)
    try:
        found = sum_constants(scale, *zeros, moved.taps, product.config, *limits, rounding)
    except NotExact as problem:
        raise Unsupported(str(problem)) from None
    if found.scale is None or found.factors != (1,):
        raise Unsupported(f"REQUANTIZE by {scale:.6g} differs from float32 for some sums")
    return found


def _choice(network: Network, first: Node, out: Image) -> _Choice | None:
    """The chain of averages and Where that begins with ``first``; None unless all have the same
    windows and no other readers."""
    nodes, makers = [first], [first]
    chosen = np.zeros(out[2:], np.int64)
    latest = first.outputs[0]
    while (reader := network.only_reader(latest)) is not None and reader.operator == "Where":
        maker, mask = network.maker(reader.inputs[1]), network.constants.get(reader.inputs[0])
        if maker is None or mask is None or reader.inputs[2] != latest:
            return None
        if mask.shape != (1, 1, *out[2:]) or not _alike(network, maker, first):
            return None
        if network.only_reader(reader.inputs[1]) is not reader:
            return None
        chosen[mask[0, 0]] = len(makers)
        makers.append(maker)
        nodes += [maker, reader]
        latest = reader.outputs[0]
    return _Choice(tuple(nodes), tuple(makers), chosen) if len(makers) > 1 else None


def _alike(network: Network, node: Node, other: Node) -> bool:
    """Whether two convolutions differ only in their output scales and pixel counts."""
    kinds = [
        {key: value for key, value in item.attributes.items() if key != "count"}
        for item in (node, other)
    ]
    if node.operator != other.operator or kinds[0] != kinds[1]:
        return False
    if node.inputs[0] != other.inputs[0] or len(node.inputs) != len(other.inputs):
        return False
    constants = (
        [network.constants.get(name) for name in item.inputs[1:]] for item in (node, other)
    )
    return all(
        at == _SCALE or (a is not None and b is not None and np.array_equal(a, b))
        for at, (a, b) in enumerate(zip(*constants, strict=True), 1)
    )
