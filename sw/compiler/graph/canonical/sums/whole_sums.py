"""Rewrite products whose result stays in float as integer sums and a scale.

ONNX Runtime's default session fuses such matrix products: it sums integers and multiplies each sum
by its channel's scale. This rule uses ONNX's own operators, and covers convolutions too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amaranth_vta.sw.compiler.graph.canonical.integer_products import like_data
from amaranth_vta.sw.compiler.graph.canonical.matrix_forms import constant_values
from amaranth_vta.sw.compiler.graph.canonical.quantization import (
    BYTE_TYPES,
    QuantizationParameters,
    parameters_of,
)
from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.graph.nodes import Node

from .replacement import Replacement

# Ranks of a convolution's input: sequences and images.
_RANKS = (3, 4)


@dataclass(frozen=True)
class _Factors:
    """The factors of a product: the DequantizeLinear ``data`` with its ``parameters``, and the
    integers ``second`` with the zero point ``zero`` and a ``scale`` per tensor or per channel."""

    data: Node
    parameters: QuantizationParameters
    second: str
    zero: Array
    scale: Array


def sum_of_integers(network: Network, node: Node) -> bool:
    """Rewrite DequantizeLinear → Conv | Gemm | MatMul as ConvInteger or MatMulInteger, addition of
    an int32 bias, DequantizeLinear, and addition of a float bias."""
    if node.domain or node.operator not in ("Conv", "Gemm", "MatMul"):
        return False
    factors = _factors(network, node)
    if factors is None:
        return False
    with np.errstate(over="ignore"):
        scale = (np.float32(factors.parameters.scale.item()) * factors.scale).astype(np.float32)
    if not np.isfinite(scale).all():
        return False
    made = Replacement(network, node)
    given = (
        factors.data.inputs[0],
        factors.second,
        made.constant("x_zero_point", factors.parameters.zero.reshape(())),
        made.constant("weight_zero_point", factors.zero),
    )
    convolves = node.operator == "Conv"
    operator = "ConvInteger" if convolves else "MatMulInteger"
    attributes = dict(node.attributes) if convolves else {}
    total = made.add(operator, "sums", np.int32, *given, **attributes)
    bias = _bias(network, node, scale) if node.input(2) else None
    in_steps = bias is not None and bias.dtype == np.int32
    if bias is not None and in_steps:
        total = made.add("Add", "biased", np.int32, total, made.constant("bias", bias))
    scales, shape = made.constant("scale", scale), network.types[node.outputs[0]].shape
    axis = 1 if convolves or shape is None else len(shape) - 1
    real = made.add("DequantizeLinear", "real", np.float32, total, scales, axis=axis)
    if node.input(2) and not in_steps:
        added = node.inputs[2] if bias is None else made.constant("bias", bias)
        made.add("Add", "real_biased", np.float32, real, added)
    made.put(operator)
    return True


def _factors(network: Network, node: Node) -> _Factors | None:
    """The factors of ``node``; None if ONNX has no integer operator for the product."""
    data, weight = (network.maker(node.input(index)) for index in (0, 1))
    first, second = (parameters_of(network, item, "DequantizeLinear") for item in (data, weight))
    if data is None or weight is None or first is None or second is None or not first.per_tensor:
        return None
    shape = network.types[data.inputs[0]].shape
    if not {first.zero.dtype, second.zero.dtype} <= {*BYTE_TYPES} or shape is None:
        return None
    biased = node.operator == "Conv" and bool(node.input(2))
    if biased and constant_values(network, node.input(2)) is None:
        return None
    values = network.constants.get(weight.inputs[0])
    if values is None:
        alike = second.per_tensor and first.zero.dtype == second.zero.dtype
        if node.operator != "MatMul" or not alike or len(shape) < 2:
            return None
        return _Factors(
            data, first, weight.inputs[0], second.zero.reshape(()), second.scale.reshape(())
        )
    if data.inputs[0] in network.constants or not _has_form(node, values, shape):
        return None
    axis, of_channels = second.axis % values.ndim, 0 if node.operator == "Conv" else values.ndim - 1
    if node.operator == "Gemm" and node.attributes.get("transB"):
        values, axis = values.T, 1 - axis
    if not second.per_tensor and (axis != of_channels or (axis and values.ndim > 2)):
        return None
    zero, scale = (
        item.reshape(()) if item.size == 1 else item.reshape(-1)
        for item in (second.zero, second.scale)
    )
    if node.operator == "Conv" and zero.ndim:  # ConvInteger has one zero point
        if np.unique(zero).size > 1:
            return None
        zero = zero[0].reshape(())
    values, zero = like_data(values, zero, first.zero.dtype)
    return _Factors(data, first, network.add_constant(f"{node.name}_weight", values), zero, scale)


def _has_form(node: Node, values: Array, shape: tuple[int, ...]) -> bool:
    if node.operator == "Conv":
        return len(shape) in _RANKS
    if node.operator == "MatMul":
        return len(shape) > 1 and values.ndim > 1
    plain = not node.attributes.get("transA", 0)
    factors = (node.attributes.get(name, 1.0) for name in ("alpha", "beta"))
    return len(shape) == 2 and plain and all(factor == 1.0 for factor in factors)


def _bias(network: Network, node: Node, scale: Array) -> Array | None:
    """A constant bias, shaped to be added to a result: int32 if it has one value per channel at the
    ``scale`` of the sums, else float32. None if it is not constant."""
    maker, values = network.maker(node.input(2)), constant_values(network, node.input(2))
    if values is None:
        return None
    parameters = parameters_of(network, maker, "DequantizeLinear")
    if maker is not None and parameters is not None and parameters.zero.dtype == np.int32:
        own, wanted = (np.broadcast_to(item, values.shape) for item in (parameters.scale, scale))
        if values.ndim == 1 and np.array_equal(own, wanted) and not parameters.zero.any():
            values = network.constants[maker.inputs[0]]
    return _of_channels(values, network, node)


def _of_channels(values: Array, network: Network, node: Node) -> Array:
    """Reshape the bias of a convolution so that it broadcasts over its images."""
    shape = network.types[node.inputs[0]].shape
    if node.operator != "Conv" or shape is None:
        return values
    return values.reshape(-1, *[1] * (len(shape) - 2))
