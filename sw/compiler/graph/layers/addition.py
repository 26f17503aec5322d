"""Lower Add and Sub of two tensors with arbitrary scales, between quantizations."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from amaranth_vta.sw.compiler.graph.canonical.quantization import integer_limits, quantized_after
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.building_blocks.exact_constants import (
    added,
    addition_constants,
)
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import (
    Array,
    NotExact,
    Quantized,
)
from amaranth_vta.sw.compiler.operators.weighted_sum import WeightedSum, weighted_sum
from amaranth_vta.sw.runtime.network.tile_layout import offset

from .fusion.fused_addition import fused_addition
from .support.layer import Layer, Unsupported
from .support.scales import dequantized, quantized
from .support.tensors import Tensors
from .unary_functions import of_one_source


def addition(node: Node, tensors: Tensors) -> Layer:
    """Lower a float Add or Sub between DequantizeLinear of both operands and QuantizeLinear, with
    Relu or Clip, if the machine reproduces all 65,536 results of ONNX Runtime. Raises
    `Unsupported`."""
    network = tensors.network
    given = [name for name in node.inputs if name not in network.constants]
    found = [dequantized(network, name) for name in given]
    if len(found) != 2:
        raise Unsupported("its result is not quantized to 8 bits at one scale")
    (first, a), (second, b) = found
    if node.operator == "Sub":
        b = replace(b, scale=-b.scale)
    after = quantized_after(network, node.outputs[0])
    if after is None:
        raise Unsupported("its result is not quantized to 8 bits at one scale")
    clamps, quantize, out = after
    low, high = (limit - offset(out.zero.dtype) for limit in integer_limits(network, clamps, out))
    y = quantized(out)
    wanted = added(a, b, y, low, high)
    nodes = (node, *clamps, quantize)
    if whole := of_one_source(nodes, tensors):
        return whole
    return addition_layer(nodes, (first, second), (a, b, y), wanted, tensors)


def sum_of_several(node: Node, tensors: Tensors) -> Layer:
    """Lower a Sum of more than two operands, which the machine runs only if all operands are
    functions of one tensor. Raises `Unsupported`."""
    network = tensors.network
    for name in node.inputs:
        if name not in network.constants:
            dequantized(network, name)
    after = quantized_after(network, node.outputs[0])
    if after is None:
        raise Unsupported("its result is not quantized to 8 bits at one scale")
    clamps, quantize, _ = after
    if whole := of_one_source((node, *clamps, quantize), tensors):
        return whole
    raise Unsupported(f"it rounds the sum of {len(node.inputs)} tensors once; the machine adds two")


def addition_layer(
    nodes: tuple[Node, ...],
    sources: tuple[str, str],
    scales: tuple[Quantized, Quantized, Quantized],
    wanted: Array,
    tensors: Tensors,
) -> Layer:
    """The layer of the sum of two tensors with the results ``wanted``, int64 (256, 256), as `added`
    computes them.

    ``scales`` are those of both operands and of the result. Raises `Unsupported` if no constants
    reproduce every result.
    """
    node = nodes[0]
    image, images = tensors.same_images(*sources, nodes[-1].outputs[0])
    try:
        constants = addition_constants(*scales, tensors.config, wanted)
    except NotExact as problem:
        raise Unsupported(str(problem)) from None
    workload = WeightedSum(prod(tensors.output_layout.shape(image)[:4]), constants)
    limits = int(wanted.min()), int(wanted.max())
    fused = fused_addition(nodes, sources, image, workload, limits, tensors)
    if fused is not None:
        return fused
    return tensors.layer(
        nodes,
        images,
        image,
        tensors.function(weighted_sum, workload, node),
        tensors.pointwise_constants(workload),
        limits,
    )
