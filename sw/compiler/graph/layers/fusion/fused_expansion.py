"""Fuse depthwise convolutions and averages with the 1×1 convolution that produces their input."""

from __future__ import annotations

from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer, Unsupported
from amaranth_vta.sw.compiler.graph.layers.support.layer_functions import where_it_fits
from amaranth_vta.sw.compiler.graph.layers.support.products import ConstantProduct, QuantizedProduct
from amaranth_vta.sw.compiler.graph.layers.support.tensors import Tensors
from amaranth_vta.sw.compiler.operators.average_pool2d import AveragePool2d
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.depthwise_chain import (
    DepthwiseChain,
    depthwise_chain,
    is_possible,
)
from amaranth_vta.sw.compiler.operators.grouped_conv2d import (
    GroupedConv2d,
    grouped_weights,
    taps_at_once,
)
from amaranth_vta.sw.compiler.tuner.workload import is_faster
from amaranth_vta.sw.runtime.network.factors import as_terms
from amaranth_vta.sw.runtime.network.tile_layout import Image
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes
from amaranth_vta.sw.runtime.scalars import pack


def fused_expansion(
    product: ConstantProduct, alone: GroupedConv2d, weights: Bytes, out: Image, tensors: Tensors
) -> Layer | None:
    """Fuse a grouped convolution with the 1×1 convolution that produces its input. None if there is
    no such producer, if it has other readers, or if two layers take fewer cycles. ``alone`` is the
    grouped convolution as its own layer."""
    return _fused(product, alone, alone, weights, out, tensors)


def fused_average(
    product: QuantizedProduct, alone: AveragePool2d, out: Image, tensors: Tensors
) -> Layer | None:
    """Fuse an average with the 1×1 convolution that produces its input, as a depthwise convolution
    with weights of one. All channel tiles share the weights and parameters of the first tile.
    Returns None if fusion is impossible or if two layers take fewer cycles. ``alone`` is the
    average as its own layer."""
    config, block = tensors.config, tensors.config.block_out
    if not config.forward:
        return None
    first = product.of_channels(block)
    channels = len(first.sums.weights)
    taps = taps_at_once(channels, channels, channels, alone.kernel, (1, 1), config)
    try:
        requantize = first.requantize
    except Unsupported:
        return None
    group = Conv2d(
        batch=alone.batch,
        inputs=1,
        outputs=1,
        height=alone.height,
        width=alone.width,
        kernel=alone.kernel,
        requantize=requantize,
        strides=alone.strides,
        pads=alone.pads,
        pad_value=alone.pad_value,
    )
    filters = GroupedConv2d(alone.channels, group, taps, alike=True)
    weights = grouped_weights(as_terms(first.sums.weights, 1), channels, config, taps)
    return _fused(first, alone, filters, pack(weights, tensors.env.wgt_dtype), out, tensors, 0)


@where_it_fits
def _fused(
    product: ConstantProduct,
    alone: GroupedConv2d | AveragePool2d,
    filters: GroupedConv2d,
    weights: Bytes,
    out: Image,
    tensors: Tensors,
    macs: int | None = None,
) -> Layer | None:
    """Fuse ``filters`` with the convolution that produces their input, if that takes fewer cycles
    than that convolution and ``alone``. ``macs`` overrides the MACs that ``product`` counts for the
    filters."""
    name = product.nodes[0].inputs[0]
    known = tensors.convolution(name)
    if known is None or tensors.network.only_reader(name) is not product.nodes[0]:
        return None
    anchor, expansion = known
    both = DepthwiseChain(expansion, filters)
    config = tensors.config
    if not is_possible(both, config) or not is_faster(both, (expansion, alone), config):
        return None
    (source,) = anchor.sources
    return product.layer(tensors, source, out, depthwise_chain, both, weights, anchor, macs)
