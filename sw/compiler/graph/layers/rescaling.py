"""Lower element-wise integer operators: Clip, changes of scale, Max and Min."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from amaranth_vta.sw.compiler.graph.canonical.quantization import (
    integer_limits,
    is_clamp,
    parameters_of,
)
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.building_blocks.exact_constants import byte_constants
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import NotExact
from amaranth_vta.sw.compiler.operators.elementwise import Elementwise, elementwise
from amaranth_vta.sw.compiler.operators.lookup import PointwiseLookup
from amaranth_vta.sw.compiler.operators.weighted_sum import WeightedSum, weighted_sum
from amaranth_vta.sw.compiler.tuner.workload import is_faster
from amaranth_vta.sw.runtime.network.tile_layout import offset

from .support.layer import Layer, Unsupported
from .support.one_tensor import CLAMPS, before
from .support.scales import dequantized, quantized
from .support.tensors import Tensors
from .unary_functions import function_layer


def clip(node: Node, tensors: Tensors) -> Layer:
    """Lower a Clip of integers with constant bounds. Raises `Unsupported`."""
    source = node.inputs[0]
    tensors.require_made(source)
    tensors.require_bytes(source, node.outputs[0])
    limits = tensors.clip_limits(node)
    if limits is None:
        raise Unsupported("its bounds are not two constants, the lower one first")
    workload = Elementwise(_vectors(tensors, source), None, low=limits[0], high=limits[1])
    function = tensors.function(elementwise, workload, node)
    image = tensors.images[tensors.root(source)]
    return tensors.layer((node,), [tensors.source(source, image)], image, function, {}, limits)


def extremum(node: Node, tensors: Tensors) -> Layer:
    """Lower a Max or Min of two tensors of 8-bit integers. Raises `Unsupported`."""
    if any(name in tensors.network.constants for name in node.inputs):
        raise Unsupported("one of its operands is a constant")
    if len(set(node.inputs)) != 2 or len(node.inputs) != 2:
        raise Unsupported("it is not of two tensors")
    first, second = node.inputs
    image, images = tensors.same_images(first, second, node.outputs[0])
    if tensors.root(second) not in tensors.results:
        tensors.require_made(first)
    vectors = prod(tensors.output_layout.shape(image)[:4])
    operation, choose = ("maximum", max) if node.operator == "Max" else ("minimum", min)
    function = tensors.function(elementwise, Elementwise(vectors, operation), node)
    lows, highs = zip(tensors.range(first), tensors.range(second), strict=True)
    return tensors.layer((node,), images, image, function, {}, (choose(lows), choose(highs)))


def quantization(node: Node, tensors: Tensors) -> Layer:
    """Lower a QuantizeLinear of a function of one tensor. If there are only Relu, Clip or no
    operators in between, the layer rescales a tensor produced by the machine. Raises
    `Unsupported`."""
    network, name = tensors.network, node.inputs[0]
    whole = before(network, node)
    if whole is not None and any(item.operator not in CLAMPS for item in whole.operators):
        return function_layer(whole, tensors)
    if (
        whole is not None
        and tensors.config.lookup
        and tensors.root(whole.source) in tensors.products
    ):
        return function_layer(whole, tensors)
    out = parameters_of(network, node, "QuantizeLinear")
    clamps: list[Node] = []
    maker = network.maker(name)
    while maker is not None and is_clamp(network, maker):
        clamps.insert(0, maker)
        name = maker.inputs[0]
        maker = network.maker(name)
    if out is None or not out.per_tensor or maker is None:
        raise Unsupported("float tensors are the host's")
    try:
        source, scale = dequantized(network, name)
    except Unsupported:
        raise Unsupported("float tensors are the host's") from None
    if tensors.root(source) not in tensors.results:
        raise Unsupported("float tensors are the host's")
    tensors.require_bytes(source, node.outputs[0])
    low, high = (limit - offset(out.zero.dtype) for limit in integer_limits(network, clamps, out))
    try:
        constants = byte_constants(scale, quantized(out), tensors.config, low, high)
    except NotExact as problem:
        raise Unsupported(str(problem)) from None
    workload = WeightedSum(_vectors(tensors, source), constants)
    if whole is not None and tensors.config.lookup:
        lookup = PointwiseLookup(workload.vectors, tensors.config.table_elements)
        if is_faster(lookup, [workload], tensors.config):
            return function_layer(whole, tensors)
    function = tensors.function(weighted_sum, workload, node)
    given = tensors.pointwise_constants(workload)
    image = tensors.images[tensors.root(source)]
    sources = [tensors.source(source, image)]
    layer = tensors.layer((*clamps, node), sources, image, function, given, (low, high))
    return replace(layer, name=node.name, operator=node.operator)


def _vectors(tensors: Tensors, source: str) -> int:
    return prod(tensors.output_layout.shape(tensors.images[tensors.root(source)])[:4])
