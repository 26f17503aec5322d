"""Sums of two tensors of different scales on the machine: Add between quantizations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from amaranth_vta.sw.compiler.graph.canonical.quantization import integer_limits, quantized_after
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.parts.exact import added, addition_constants
from amaranth_vta.sw.compiler.operators.parts.fixed_point import Array, NotExact, Quantized
from amaranth_vta.sw.compiler.operators.weighted_sum import WeightedSum, weighted_sum
from amaranth_vta.sw.runtime.network.tile_layout import offset
from amaranth_vta.sw.runtime.scalars import pack

from .parts.layer import Layer, NotHere
from .parts.scales import dequantized, quantized
from .parts.tensors import Tensors


def addition(node: Node, tensors: Tensors) -> Layer:
    """An Add in float between DequantizeLinear of both operands and QuantizeLinear, with Relu or
    Clip, if the machine gives all 65,536 results that ONNX Runtime does. Raises `NotHere`."""
    network = tensors.network
    sources, scales = zip(*(dequantized(network, name) for name in node.inputs), strict=True)
    after = quantized_after(network, node.outputs[0])
    if after is None:
        raise NotHere("its result is not quantized to 8 bits at one scale")
    clamps, quantize, out = after
    low, high = (limit - offset(out.zero.dtype) for limit in integer_limits(network, clamps, out))
    (a, b), y = scales, quantized(out)
    wanted = added(a, b, y, low, high)
    return addition_layer((node, *clamps, quantize), sources, (a, b, y), wanted, tensors)


def addition_layer(
    nodes: tuple[Node, ...],
    sources: Sequence[str],
    scales: tuple[Quantized, Quantized, Quantized],
    wanted: Array,
    tensors: Tensors,
) -> Layer:
    """The sum of two tensors, with results ``wanted``, as `added` has them.

    ``scales`` are those of both and of the result. Raises `NotHere` if no constants do it.
    """
    network, layout = tensors.network, tensors.output_layout
    node, result = nodes[0], nodes[-1].outputs[0]
    shapes = [network.types[name].shape for name in (*sources, result)]
    if shapes[0] != shapes[1]:
        raise NotHere(f"its operands have different shapes: {shapes[0]} and {shapes[1]}")
    tensors.require_bytes(*sources, result)
    images = [tensors.held(name, tensors.any_image(name)) for name in sources]
    if images[0] != images[1]:
        raise NotHere(f"its operands are held as images of {images[0]} and of {images[1]}")
    try:
        constants = addition_constants(*scales, tensors.config, wanted)
    except NotExact as problem:
        raise NotHere(str(problem)) from None
    workload = WeightedSum(prod(layout.shape(images[0])[:4]), constants)
    given = tensors.identity_constant() if workload.by_gemm(tensors.env) else {}
    if constants.parameter_count:
        given["factors"] = pack(constants.parameters(tensors.env), tensors.env.acc_dtype)
    return tensors.layer(
        nodes,
        [tensors.source(name, images[0]) for name in sources],
        images[0],
        tensors.function(weighted_sum, workload, node),
        given,
        (int(wanted.min()), int(wanted.max())),
    )
