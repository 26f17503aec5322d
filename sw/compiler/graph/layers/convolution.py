"""Lower QLinearConv and ConvInteger."""

from __future__ import annotations

from dataclasses import replace

from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d, conv2d
from amaranth_vta.sw.compiler.operators.grouped_conv2d import (
    GroupedConv2d,
    grouped_conv2d,
    grouped_weights,
    grouping,
    taps_at_once,
)
from amaranth_vta.sw.runtime.network.factors import as_terms
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.packing import Window
from amaranth_vta.sw.runtime.network.tile_layout import Image, tiles
from amaranth_vta.sw.runtime.network.tiled_tensor import TiledTensor
from amaranth_vta.sw.runtime.scalars import pack

from .border_average import border_average, is_chosen_from
from .fusion.fused_expansion import fused_expansion
from .fusion.fused_projection import fused_projection
from .matrix_product import product_layer
from .pooling import average_pool, is_average
from .support.choose_packing import best_packing
from .support.far_taps import View, best_view
from .support.layer import Layer
from .support.products import ConstantProduct, QuantizedProduct, WholeProduct
from .support.tensors import Tensors
from .support.windows import fitting_window
from .transposed_convolution import transposed_convolution


def convolution(node: Node, tensors: Tensors) -> Layer:
    """Lower a QLinearConv and a following Clip. Raises `Unsupported`."""
    image, out = tensors.image(node.inputs[0]), tensors.image(node.outputs[0])
    product = QuantizedProduct.of(node, tensors)
    moved = _window(product, image, out)
    if is_average(product, moved):
        if is_chosen_from(tensors.network, node):
            return border_average(product, tensors, moved, image, out)
        return average_pool(product, tensors, moved, image, out)
    if _groups(node) == 1:
        layer = transposed_convolution(product, tensors, image)
        if layer is not None:
            return layer
    return _of_images(product, tensors, moved, image, out)


def convolution_sums(node: Node, tensors: Tensors) -> Layer:
    """Lower a ConvInteger and the following addition of a bias. Raises `Unsupported`."""
    image, out = tensors.image(node.inputs[0]), tensors.image(node.outputs[0])
    product = WholeProduct.of(node, tensors)
    return _of_images(product, tensors, _window(product, image, out), image, out)


def _window(product: ConstantProduct, image: Image, out: Image) -> Window:
    node, weights = product.nodes[0], product.sums.weights
    if weights.shape[1] * _groups(node) != image[1]:
        raise ModelError(
            f"{node.name}: its weights are for {weights.shape[1] * _groups(node)} channels, its "
            f"input {node.inputs[0]} has {image[1]}"
        )
    return fitting_window(node, image, out, weights.shape[2:])


def _groups(node: Node) -> int:
    return int(node.attributes.get("group", 1))


def _of_images(
    product: ConstantProduct, tensors: Tensors, moved: Window, image: Image, out: Image
) -> Layer:
    node, groups = product.nodes[0], _groups(product.nodes[0])
    if groups == 1 and moved.taps == 1 and not any(moved.pads) and image[2:] == (1, 1):
        return product_layer(product, tensors, image, out)
    source = tensors.product_input(node.inputs[0], image, tensors.is_held(node.inputs[0], image))
    if groups > 1:
        return _grouped(product, tensors, moved, source, out)
    return _convolution(product, tensors, moved, source, out)


def _convolution(
    product: ConstantProduct, tensors: Tensors, moved: Window, source: TiledTensor, out: Image
) -> Layer:
    config, image, packing = tensors.config, source.image, None
    if source.tensor not in tensors.results:
        packing, moved = best_packing(
            moved,
            product.zero_point,
            image,
            out[1],
            source.layout,
            config,
            tensors.is_expansion(product.nodes[-1].outputs[0]),
        )
    packed = packing.image(image) if packing else image
    view, workload = best_view(
        moved,
        packed,
        out,
        lambda view: product.fastest(_workload(product, tensors, view, out)),
        config,
    )
    weights, row_weights = product.packed(
        workload, lambda given: view.weights(packing.weights(given) if packing else given)
    )
    source = replace(source, packing=packing)
    fused = fused_projection(product, workload, weights, out, tensors)
    if fused is not None:
        return fused
    return product.layer(tensors, source, out, conv2d, workload, weights, row_weights=row_weights)


def _grouped(
    product: ConstantProduct, tensors: Tensors, moved: Window, source: TiledTensor, out: Image
) -> Layer:
    config, image, node = tensors.config, source.image, product.nodes[0]
    groups = _groups(node)
    way = grouping(image[1], out[1], groups, config)
    channels = image[1], out[1], groups

    def of_groups(view: View) -> GroupedConv2d:
        alone = _workload(product, tensors, view, out)
        taps = taps_at_once(*channels, alone.kernel, alone.dilations, config)
        group = replace(alone, inputs=way.inputs, outputs=way.outputs)
        return GroupedConv2d(way.groups, group, taps)

    view, workload = best_view(moved, image, out, of_groups, config)
    terms = product.sums.terms
    values = as_terms(view.weights(product.sums.weights), terms)
    weights = grouped_weights(values, groups, config, workload.taps, terms)
    packed = pack(weights, tensors.env.wgt_dtype)
    fused = fused_expansion(product, workload, packed, out, tensors)
    if fused is not None:
        return fused
    return product.layer(tensors, source, out, grouped_conv2d, workload, packed)


def _workload(product: ConstantProduct, tensors: Tensors, view: View, out: Image) -> Conv2d:
    config, image, moved = tensors.config, view.image, view.window
    return Conv2d(
        batch=tiles(image[0], config.batch),
        inputs=tiles(image[1], config.block_in),
        outputs=tiles(out[1], config.block_out),
        height=image[2],
        width=image[3],
        kernel=moved.kernel,
        requantize=product.requantize,
        strides=moved.strides,
        dilations=moved.dilations,
        pads=moved.pads,
        pad_value=product.pad_value(moved, tensors),
        terms=product.sums.terms,
        is_first=tensors.is_new(product.nodes[0].inputs[0]),
    )
