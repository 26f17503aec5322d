"""Lower element-wise functions of one tensor: any function to a LOOKUP table; without LOOKUP or
with per-channel constants, functions that are linear between two bounds."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import PerChannelScale
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import Array
from amaranth_vta.sw.compiler.operators.building_blocks.steps import LookupTable, PerChannelLine
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.grouped_conv2d import (
    GroupedConv2d,
    grouped_conv2d,
    grouped_weights,
    grouping,
)
from amaranth_vta.sw.compiler.operators.lookup import PointwiseLookup, lookup
from amaranth_vta.sw.compiler.operators.weighted_sum import WeightedSum, weighted_sum
from amaranth_vta.sw.runtime.network.factors import as_terms, terms_between
from amaranth_vta.sw.runtime.network.tile_layout import Image, tiles
from amaranth_vta.sw.runtime.network.tiled_tensor import TiledTensor
from amaranth_vta.sw.runtime.scalars import pack

from .fusion.fused_step import fused_step
from .fusion.second_result import second_result
from .support.layer import Layer, Unsupported
from .support.lines import channel_lines, line, step_lines
from .support.one_tensor import OneTensor, before, named, results
from .support.tensors import Tensors
from .support.tiled_constants import pack_bias


def integer_function(node: Node, tensors: Tensors) -> Layer:
    """Lower an operator on one tensor of integers, such as QLinearLeakyRelu and Lookup. Raises
    `Unsupported`."""
    return function_layer(OneTensor(node.inputs[0], node.outputs[0], (node,)), tensors)


def function_layer(function: OneTensor, tensors: Tensors) -> Layer:
    """The layer of a function of one tensor. Raises `Unsupported`."""
    try:
        return _layer(function, tensors)
    except Unsupported as reason:
        if function.operators in ([], [function.nodes[-1]]):
            raise
        text = f"{named(function.operators)} of one tensor: {reason}"
        raise Unsupported(text, function.operators) from None


def _layer(function: OneTensor, tensors: Tensors) -> Layer:
    tensors.require_bytes(function.source, function.result)
    image, table = _table(function, tensors)
    tensors.require_held(function.source, image)
    if table.shape[1] == 1:
        layer = _of_tensor(function, table[:, 0], tensors)
    else:
        layer = _of_channels(function, table, tensors)
    if layer.nodes != function.absorbed:
        return layer  # fused with the layer that produces the tensor
    return replace(layer, name=function.name.name, operator=function.name.operator)


def _table(function: OneTensor, tensors: Tensors) -> tuple[Image, Array]:
    """The shape in which the machine holds the tensor, and the `results`. A tensor written by the
    host can be held as rows or as a sequence, whichever has the channels of the constants."""
    image, shape = tensors.any_image(function.source), tensors.network.types[function.source].shape
    known = tensors.root(function.source) in tensors.images
    if known or shape is None or len(shape) != 3:
        return image, results(tensors.network, function, image)
    try:
        return image, results(tensors.network, function, image)
    except Unsupported:
        image = (*shape[:2], 1, shape[2])
        return image, results(tensors.network, function, image)


def of_one_source(nodes: tuple[Node, ...], tensors: Tensors) -> Layer | None:
    """Lower ``nodes``, from an operator with several operands to an integer result, as a function
    of one tensor from which all operands are computed. None if there is no such tensor, or if the
    machine cannot run the function."""
    whole = before(tensors.network, nodes[-1]) if tensors.config.lookup else None
    if whole is None:
        return None
    try:
        return function_layer(replace(whole, ends=nodes), tensors)
    except Unsupported:
        return None


def _of_tensor(function: OneTensor, table: Array, tensors: Tensors) -> Layer:
    image = tensors.images[tensors.root(function.source)]
    vectors = prod(tensors.output_layout.shape(image)[:4])
    last, config = function.nodes[-1], tensors.config
    limits = int(table.min()), int(table.max())
    if config.lookup:
        alone = PointwiseLookup(vectors, config.table_elements)
        workload: PointwiseLookup | WeightedSum = alone
        packed = pack(te.table_tiles(table, config), tensors.env.acc_dtype)
        if fused := fused_step(
            function, LookupTable(config.table_elements), packed, alone, limits, tensors
        ):
            return fused
        if fused := second_result(
            function, LookupTable(config.table_elements), packed, alone, limits, tensors
        ):
            return fused
        made = tensors.function(lookup, workload, last)
        identity = tensors.identity_constant() if workload.by_gemm(tensors.env) else {}
        given = identity | {"table": packed}
    else:
        constants = line(table, function.zero_point(tensors.network), config)
        workload = WeightedSum(vectors, constants)
        made = tensors.function(weighted_sum, workload, last)
        given = tensors.pointwise_constants(workload)
    sources = [tensors.source(function.source, image)]
    layer = tensors.layer(function.absorbed, sources, image, made, given, limits)
    layer = replace(layer, name=function.name.name, operator=function.name.operator)
    if isinstance(workload, PointwiseLookup):
        tensors.products[layer.result.tensor] = layer, lookup, workload
    return layer


def _of_channels(function: OneTensor, table: Array, tensors: Tensors) -> Layer:
    """The layer of a function that differs per channel: a depthwise 1×1 convolution."""
    config, zero_point = tensors.config, function.zero_point(tensors.network)
    image = tensors.images[tensors.root(function.source)]
    limits = int(table.min()), int(table.max())
    n, c, h, w = image
    way = grouping(c, c, c, config)
    group = Conv2d(
        *(tiles(n, config.batch), way.inputs, way.outputs, h, w, (1, 1), PerChannelScale())
    )
    alone = GroupedConv2d(way.groups, group)
    if tensors.root(function.source) in tensors.products:
        found = step_lines(table, zero_point, config)
        if found is not None:
            line, packed = PerChannelLine(found[0]), pack_bias(found[1], config)
            if fused := fused_step(function, line, packed, alone, limits, tensors):
                return fused
    weights, parameters = channel_lines(table, zero_point, config)
    terms = terms_between(int(weights.min()), int(weights.max()))
    alone = replace(alone, group=replace(group, terms=terms))
    made = tensors.function(grouped_conv2d, alone, function.nodes[-1])
    kernels = grouped_weights(as_terms(weights.reshape(c, 1, 1, 1), terms), c, config)
    given = {
        "weights": pack(kernels, tensors.env.wgt_dtype),
        "requantization": pack_bias(parameters, config),
    }
    source = TiledTensor(tensors.root(function.source), image, tensors.input_layout)
    return tensors.layer(function.absorbed, [source], image, made, given, limits)
