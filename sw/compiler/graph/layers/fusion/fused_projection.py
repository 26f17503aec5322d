"""Fuse 1×1 convolutions with the depthwise convolution before them, and with its expansion."""

from __future__ import annotations

from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer
from amaranth_vta.sw.compiler.graph.layers.support.layer_functions import where_it_fits
from amaranth_vta.sw.compiler.graph.layers.support.products import ConstantProduct
from amaranth_vta.sw.compiler.graph.layers.support.tensors import Tensors
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import FixedPoint
from amaranth_vta.sw.compiler.operators.building_blocks.residual import Addition
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.depthwise_chain import (
    DepthwiseChain,
    depthwise_chain,
    is_possible,
)
from amaranth_vta.sw.compiler.operators.grouped_conv2d import GroupedConv2d
from amaranth_vta.sw.compiler.tuner.workload import is_faster
from amaranth_vta.sw.runtime.network.tile_layout import Image
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes

# Stands for the addition that will follow: schedules do not depend on its constants.
_ADDITION = Addition(FixedPoint((3, 5), 1, 1, 0, -128, 127, scale=0.5, joined=True))

# Share of the estimated cycles of two layers below which a fused pair saves cycles: estimates of
# pairs are up to 12 % too low, since they do not know all conflicts of ALU and GEMM in a bank.
_SHARE_OF_PAIRS = 0.88


@where_it_fits
def fused_projection(
    product: ConstantProduct, alone: Conv2d, weights: Bytes, out: Image, tensors: Tensors
) -> Layer | None:
    """Fuse a convolution with the layer of a depthwise convolution, perhaps with an expansion, that
    produces its input. None if there is no such layer, if it has other readers, or if two layers
    take fewer cycles. ``alone`` is the convolution as its own layer.

    Without an expansion, the two convolutions stay apart if the result is expanded again, since the
    layer of three that follows saves more, and if another tensor is added, since additions take
    longer than the few products of a tile."""
    name, result = product.nodes[0].inputs[0], product.nodes[-1].outputs[0]
    anchor, _, before = tensors.products.get(name, (None, None, None))
    if anchor is None:
        return None
    match before:
        case DepthwiseChain(expansion, depthwise, None):
            whole = DepthwiseChain(expansion, depthwise, alone)
        case GroupedConv2d():
            whole = DepthwiseChain(None, before, alone)
        case _:
            return None
    is_pair, added = whole.expansion is None, _is_added(product, tensors)
    if is_pair and (added or tensors.is_expansion(result)):
        return None
    if tensors.network.only_reader(name) is not product.nodes[0]:
        return None
    config = tensors.config
    share = _SHARE_OF_PAIRS if is_pair else 1.0
    if not is_possible(whole, config) or not is_faster(whole, (before, alone), config, share):
        return None
    if added:
        total, projected = whole.followed_by(_ADDITION), alone.followed_by(_ADDITION)
        if total and projected and not is_faster(total, (before, projected), config):
            return None
    (source,) = anchor.sources
    return product.layer(tensors, source, out, depthwise_chain, whole, weights, anchor)


def _is_added(product: ConstantProduct, tensors: Tensors) -> bool:
    """Whether the only reader of the result is an addition, which will be fused too."""
    network = tensors.network
    reader = network.only_reader(product.nodes[-1].outputs[0])
    while reader is not None and reader.operator in ("DequantizeLinear", "Reshape"):
        reader = network.only_reader(reader.outputs[0])
    return reader is not None and reader.operator.endswith("Add")
