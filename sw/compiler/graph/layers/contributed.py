"""Operators of the domain com.microsoft, which ONNX Runtime's quantizer writes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.parts.fixed_point import Array, Quantized
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from amaranth_vta.sw.runtime.network.tensor_type import TensorType
from amaranth_vta.sw.runtime.network.tile_layout import offset

from .addition import addition_layer
from .matrix_product import matrix_product
from .parts.layer import Layer, NotHere
from .parts.products import Product
from .parts.tensors import Tensors
from .parts.windows import window
from .pooling import average_pool

DOMAIN = "com.microsoft"
# Names of tensors in the model of one addition.
_FIRST, _SECOND, _RESULT = "first", "second", "result"


def quantized_addition(node: Node, tensors: Tensors) -> Layer:
    """A QLinearAdd of two tensors of one shape, with a Clip that follows. Raises `NotHere`.

    ONNX Runtime computes all 65,536 results that the machine has to give: its formula differs from
    that of Add between quantizations.
    """
    limits, clips = tensors.clip_after(node.outputs[0])
    names = (node.inputs[0], node.inputs[3])
    tensors.require_bytes(*names, node.outputs[0])
    a, b, y = (_quantized(node, tensors, scale) for scale in (1, 4, 6))
    scales = (a, b, y)
    wanted = np.clip(_all_sums(node, tensors), *limits)
    return addition_layer((node, *clips), names, scales, wanted, tensors)


def gemm(node: Node, tensors: Tensors) -> Layer:
    """A QGemm with constant weights, with a Clip that follows. Raises `NotHere`."""
    if node.attributes.get("transA", 0) or node.attributes.get("alpha", 1.0) != 1.0:
        raise NotHere("its first factor is transposed, or its product multiplied")
    return matrix_product(node, tensors)


def global_average_pool(node: Node, tensors: Tensors) -> Layer:
    """A QLinearGlobalAveragePool, with a Clip that follows: a convolution with weights of one,
    as the canonical form has it. Raises `NotHere`."""
    if node.attributes.get("channels_last", 0):
        raise NotHere("its channels are last")
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
    layer = average_pool(Product.of(conv, tensors), tensors, moved, image, out)
    return replace(layer, operator=node.operator)


def _quantized(node: Node, tensors: Tensors, scale: int) -> Quantized:
    value = tensors.constant(node, scale)
    if value.size != 1:
        raise NotHere("a scale differs within a tensor")
    return Quantized(float(value.item()), tensors.zero_point(node, scale + 1))


def _all_sums(node: Node, tensors: Tensors) -> Array:
    """int64 (256, 256): results by the value of the first operand and that of the
    second, all of them as the machine holds them."""
    network = tensors.network
    types = {
        name: TensorType(network.types[read].dtype, (256, 256))
        for name, read in (
            (_FIRST, node.inputs[0]),
            (_SECOND, node.inputs[3]),
            (_RESULT, node.outputs[0]),
        )
    }
    first, second = (
        (np.arange(-128, 128) + offset(types[name].dtype)).astype(types[name].dtype)
        for name in (_FIRST, _SECOND)
    )
    alone = replace(
        node, inputs=(_FIRST, *node.inputs[1:3], _SECOND, *node.inputs[4:]), outputs=(_RESULT,)
    )
    model = replace(network, types=network.types | types).part(
        [alone], [_FIRST, _SECOND], [_RESULT]
    )
    given = {_FIRST: np.repeat(first, 256).reshape(256, 256), _SECOND: np.tile(second, (256, 1))}
    results = run_session(exact_session(model.SerializeToString()), [_RESULT], given)[_RESULT]
    return results.astype(np.int64) - offset(results.dtype)
