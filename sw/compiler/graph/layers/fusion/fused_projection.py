"""Fuse 1×1 convolutions with the two convolutions before them into an inverted residual."""

from __future__ import annotations

from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer
from amaranth_vta.sw.compiler.graph.layers.support.layer_functions import where_it_fits
from amaranth_vta.sw.compiler.graph.layers.support.products import ConstantProduct
from amaranth_vta.sw.compiler.graph.layers.support.tensors import Tensors
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.expanded_conv2d import ExpandedConv2d
from amaranth_vta.sw.compiler.operators.inverted_residual import (
    InvertedResidual,
    inverted_residual,
    is_possible,
)
from amaranth_vta.sw.compiler.tuner.workload import is_faster
from amaranth_vta.sw.runtime.network.tile_layout import Image
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes


@where_it_fits
def fused_projection(
    product: ConstantProduct, alone: Conv2d, weights: Bytes, out: Image, tensors: Tensors
) -> Layer | None:
    """Fuse a convolution with the layer of an expansion and a depthwise convolution that produces
    its input. None if there is no such layer, if it has other readers, or if two layers take fewer
    cycles. ``alone`` is the convolution as its own layer."""
    name = product.nodes[0].inputs[0]
    anchor, _, expanded = tensors.products.get(name, (None, None, None))
    if anchor is None or not isinstance(expanded, ExpandedConv2d):
        return None
    whole = InvertedResidual(expanded, alone)
    if tensors.network.only_reader(name) is not product.nodes[0]:
        return None
    config = tensors.config
    if not is_possible(whole, config) or not is_faster(whole, (expanded, alone), config):
        return None
    (source,) = anchor.sources
    return product.layer(tensors, source, out, inverted_residual, whole, weights, anchor)
