"""Depthwise convolutions fused with the 1×1 convolution that makes their images."""

from __future__ import annotations

from amaranth_vta.sw.compiler.operators.expanded_conv2d import (
    ExpandedConv2d,
    expanded_conv2d,
    is_possible,
)
from amaranth_vta.sw.compiler.operators.grouped_conv2d import GroupedConv2d
from amaranth_vta.sw.compiler.tuner.workload import NoScheduleFits, choose
from amaranth_vta.sw.runtime.network.tile_layout import Image
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes

from .layer import Layer
from .products import ConstantProduct
from .tensors import Tensors


def fused_expansion(
    product: ConstantProduct, alone: GroupedConv2d, weights: Bytes, out: Image, tensors: Tensors
) -> Layer | None:
    """The layer of a grouped convolution, ``alone`` by itself, and of the convolution whose result
    it reads; None if that is no 1×1 convolution or has other readers, or if two layers take fewer
    cycles."""
    node = product.nodes[0]
    known = tensors.convolutions.get(node.inputs[0])
    if known is None or tensors.network.only_reader(node.inputs[0]) is not node:
        return None
    anchor, expansion = known
    both = ExpandedConv2d(expansion, alone)
    if not is_possible(both, tensors.config):
        return None
    first, second, fused = (
        choose(item, tensors.config).cycles for item in (expansion, alone, both)
    )
    if first + second <= fused:
        return None
    (source,) = anchor.sources
    try:
        return product.layer(tensors, source, out, expanded_conv2d, both, weights, anchor)
    except NoScheduleFits:
        return None
