"""Lower element-wise products of two tensors: Mul between quantizations."""

from __future__ import annotations

from math import prod

from amaranth_vta.sw.compiler.graph.canonical.quantization import quantized_after
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.building_blocks.exact_constants import product_constants
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import (
    Array,
    NotExact,
    Quantized,
)
from amaranth_vta.sw.compiler.operators.scaled_product import ScaledProduct, scaled_product

from .support.layer import Layer, Unsupported
from .support.scales import dequantized, quantized
from .support.tensors import Tensors
from .support.two_tensors import all_results
from .unary_functions import of_one_source


def multiplication(node: Node, tensors: Tensors) -> Layer:
    """Lower a float Mul between DequantizeLinear of both operands and QuantizeLinear, with Relu or
    Clip, if the machine reproduces all 65,536 results of ONNX Runtime. Raises `Unsupported`."""
    network = tensors.network
    (first, a), (second, b) = (dequantized(network, name) for name in node.inputs)
    after = quantized_after(network, node.outputs[0])
    if after is None:
        raise Unsupported("its result is not quantized to 8 bits at one scale")
    clamps, quantize, out = after
    nodes = (node, *clamps, quantize)
    if whole := of_one_source(nodes, tensors):
        return whole
    if first == second:
        raise Unsupported("it multiplies a tensor with itself")
    tensors.same_images(first, second, quantize.outputs[0])
    makers = [network.maker(name) for name in node.inputs]
    run = [*(maker for maker in makers if maker is not None), *nodes]
    wanted = all_results(network, run, (first, second), quantize.outputs[0])
    return multiplication_layer(nodes, (first, second), (a, b, quantized(out)), wanted, tensors)


def multiplication_layer(
    nodes: tuple[Node, ...],
    sources: tuple[str, str],
    scales: tuple[Quantized, Quantized, Quantized],
    wanted: Array,
    tensors: Tensors,
) -> Layer:
    """The layer of the product of two tensors with the results ``wanted``, int64 (256, 256), for
    all pairs of values.

    ``scales`` are those of both operands and of the result. Raises `Unsupported` if no constants
    reproduce every result.
    """
    image, images = tensors.same_images(*sources, nodes[-1].outputs[0])
    a, b, y = scales
    try:
        constants = product_constants(a, b, y, tensors.config, wanted)
    except NotExact as problem:
        raise Unsupported(str(problem)) from None
    vectors = prod(tensors.output_layout.shape(image)[:4])
    workload = ScaledProduct(vectors, (a.zero_point, b.zero_point), constants)
    return tensors.layer(
        nodes,
        images,
        image,
        tensors.function(scaled_product, workload, nodes[0]),
        tensors.pointwise_constants(workload),
        (int(wanted.min()), int(wanted.max())),
    )
