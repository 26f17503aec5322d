"""Lower operators of the domain com.microsoft, which ONNX Runtime's quantizer writes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.graph.windows import window
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import Quantized

from .addition import addition_layer
from .matrix_product import matrix_product
from .multiplication import multiplication_layer
from .pooling import average_pool
from .support.layer import Layer, Unsupported
from .support.one_tensor import OneTensor
from .support.products import QuantizedProduct
from .support.tensors import Tensors
from .support.two_tensors import all_results
from .unary_functions import function_layer, of_one_source


def element_wise(node: Node, tensors: Tensors) -> Layer:
    """Lower a QLinearAdd or QLinearMul of two tensors of one shape, with a following Clip, or of a
    tensor and a constant. Raises `Unsupported`.

    ONNX Runtime computes the 65,536 reference results, since its formula differs from that of Add
    between quantizations.
    """
    limits, clips = tensors.clip_after(node.outputs[0])
    names = (node.inputs[0], node.inputs[3])
    if function := _of_one(node, tensors):
        return function_layer(function, tensors)
    if whole := of_one_source((node,), tensors):
        return whole
    tensors.require_bytes(*names, node.outputs[0])
    a, b, y = (_quantized(node, tensors, scale) for scale in (1, 4, 6))
    wanted = all_results(tensors.network, [node], names, node.outputs[0])
    make = addition_layer if node.operator == "QLinearAdd" else multiplication_layer
    return make((node, *clips), names, (a, b, y), np.clip(wanted, *limits), tensors)


def _of_one(node: Node, tensors: Tensors) -> OneTensor | None:
    """The function of a QLinearAdd or QLinearMul of a tensor and a constant, in either order; else
    None."""
    varying = [index for index in (0, 3) if node.inputs[index] not in tensors.network.constants]
    if len(varying) != 1:
        return None
    return OneTensor(node.inputs[varying[0]], node.outputs[0], (node,))


def gemm(node: Node, tensors: Tensors) -> Layer:
    """Lower a QGemm with constant weights and a following Clip. Raises `Unsupported`."""
    if node.attributes.get("alpha", 1.0) != 1.0:
        raise Unsupported("its alpha is not 1")
    return matrix_product(node, tensors)


def global_average_pool(node: Node, tensors: Tensors) -> Layer:
    """Lower a QLinearGlobalAveragePool and a following Clip as a convolution with weights of one,
    as the canonical form does for other averages. Raises `Unsupported`."""
    if node.attributes.get("channels_last", 0):
        raise Unsupported("its layout is channels last")
    tensors.require_bytes(node.inputs[0])
    image, out = tensors.image(node.inputs[0]), tensors.image(node.outputs[0])
    network, name, kernel = tensors.network, node.name, image[2:]
    dtype = network.types[node.inputs[0]].dtype
    scale = np.float32(tensors.constant(node, 3).item()) * np.float32(prod(kernel))
    x, x_scale, x_zero, _, y_zero = node.inputs
    constants = {
        "weight": np.ones((image[1], 1, *kernel), dtype),
        "weight_scale": np.array(1, np.float32),
        "weight_zero_point": np.array(0, dtype),
        "y_scale": np.array(scale, np.float32),
    }
    made = [network.add_constant(f"{name}_{what}", value) for what, value in constants.items()]
    attributes = {"group": image[1], "kernel_shape": list(kernel)}
    inputs = (x, x_scale, x_zero, *made, y_zero)
    conv = Node("QLinearConv", name, inputs, node.outputs, attributes)
    moved = window(conv, image, out, kernel)
    layer = average_pool(QuantizedProduct.of(conv, tensors), tensors, moved, image, out)
    return replace(layer, operator=node.operator)


def average_of_integers(node: Node, tensors: Tensors) -> Layer:
    """Raise `Unsupported` with the reason why the canonical form did not rewrite a
    QLinearAveragePool."""
    if node.attributes.get("channels_last", 0):
        raise Unsupported("its layout is channels last")
    if tensors.network.types[node.outputs[0]].shape is None:
        raise Unsupported("its shape is not known")
    raise Unsupported("its zero point is odd: halves would be rounded to even before it")


def _quantized(node: Node, tensors: Tensors, scale: int) -> Quantized:
    value = tensors.constant(node, scale)
    if value.size != 1:
        raise Unsupported("a scale is per channel, not per tensor")
    return Quantized(float(value.item()), tensors.zero_point(node, scale + 1))
