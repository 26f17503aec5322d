"""Canonicalization rules that rewrite float products as QLinearConv and QLinearMatMul."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.graph.second_factor import SECOND_FACTOR
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .integer_averages import AVERAGES
from .quantization import (
    BYTE_TYPES,
    QuantizationParameters,
    clipped,
    integer_limits,
    is_clamp,
    parameters_of,
    quantized_after,
)
from .sum_steps import ResultLimits, stored, sum_steps, zero_free


@dataclass(frozen=True)
class Anchor:
    """A float Conv, Gemm or MatMul with the operators around it that are fused into its integer
    form."""

    node: Node
    data: Node  # DequantizeLinear
    weight: Node  # DequantizeLinear
    bias: str  # a constant or the output of a DequantizeLinear; empty without a bias
    clamps: list[Node]
    quantize: Node
    absorbed: list[Node]  # from `node` to the last before `quantize`


def fuse_product(network: Network, node: Node) -> bool:
    """Rewrite DequantizeLinear → Conv | Gemm | MatMul → [Relu | Clip] → QuantizeLinear as
    QLinearConv or QLinearMatMul, then Clip."""
    anchor = anchor_of(network, node, ("Conv", "Gemm", "MatMul"))
    if anchor is None:
        return False
    made = _integer_nodes(network, anchor)
    if made is None:
        return False
    network.nodes.replace(anchor.quantize, made)
    for absorbed in anchor.absorbed:
        network.nodes.remove(absorbed)
    return True


def quantize_as_data(network: Network, node: Node) -> bool:
    """If a product or average has int8 data and a uint8 result, or vice versa, quantize the result
    to the type of the data first, with the same steps: ONNX Runtime's products use one type for
    both."""
    quantize = _quantize_after(network, node)
    maker = network.maker(node.input(0))
    data = parameters_of(network, maker, "DequantizeLinear")
    out = parameters_of(network, quantize, "QuantizeLinear")
    if quantize is None or maker is None or data is None or out is None or not out.per_tensor:
        return False
    if {data.zero.dtype, out.zero.dtype} != {*BYTE_TYPES}:
        return False
    if maker.inputs[0] in network.constants:  # its type is adapted to the other factor
        return False
    dtype = data.zero.dtype
    moved, _ = like_data(out.zero, out.zero, dtype)
    zero = network.add_constant(f"{node.name}_{dtype}_zero_point", moved)
    integer, real = (network.unused_name(f"{quantize.name}_{what}") for what in (dtype, "real"))
    info = network.types[quantize.outputs[0]]
    network.types[integer] = replace(info, dtype=dtype)
    network.types[real] = network.types[quantize.inputs[0]]
    given = quantize.inputs[1], zero
    kept = {name: value for name, value in quantize.attributes.items() if name == "axis"}
    network.nodes.replace(
        quantize,
        [
            Node("QuantizeLinear", integer, (quantize.inputs[0], *given), (integer,), kept),
            Node("DequantizeLinear", real, (integer, *given), (real,), kept),
            replace(quantize, inputs=(real, *quantize.inputs[1:])),
        ],
    )
    return True


def match_factors(network: Network, node: Node) -> bool:
    """Requantize the second factor of a MatMul of int8 and uint8, neither of them constant, to the
    type of the first, with the same steps. The machine holds both types alike."""
    if node.operator != "MatMul" or node.domain:
        return False
    makers = [network.maker(name) for name in node.inputs]
    first, second = (parameters_of(network, item, "DequantizeLinear") for item in makers)
    if first is None or second is None or not second.per_tensor:
        return False
    if {first.zero.dtype, second.zero.dtype} != {*BYTE_TYPES}:
        return False
    if any(maker is None or maker.inputs[0] in network.constants for maker in makers):
        return False
    name, real, info = node.name, node.inputs[1], network.types[node.inputs[1]]
    zero, _ = like_data(second.zero, second.zero, first.zero.dtype)
    integer, factor = (network.unused_name(f"{name}_second_{what}") for what in ("bytes", "real"))
    network.types[integer] = replace(info, dtype=first.zero.dtype)
    network.types[factor] = info
    scale = network.add_constant(f"{name}_second_scale", second.scale.reshape(()))
    given = scale, network.add_constant(f"{name}_second_zero_point", zero.reshape(()))
    network.nodes.replace(
        node,
        [
            Node("QuantizeLinear", integer, (real, *given), (integer,)),
            Node("DequantizeLinear", factor, (integer, *given), (factor,)),
            replace(node, inputs=(node.inputs[0], factor)),
        ],
    )
    return True


def _quantize_after(network: Network, node: Node) -> Node | None:
    """The QuantizeLinear that would be fused with the product or average ``node``."""
    if node.operator in AVERAGES and not node.domain:
        after = quantized_after(network, node.outputs[0])
        return None if after is None else after[1]
    anchor = anchor_of(network, node, ("Conv", "ConvTranspose", "Gemm", "MatMul"))
    return None if anchor is None else anchor.quantize


def anchor_of(network: Network, node: Node, operators: tuple[str, ...]) -> Anchor | None:
    """``node`` with the operators to fuse with it; None if it is not one of ``operators``, or if
    the chain does not end in a QuantizeLinear."""
    if node.operator not in operators or node.domain:
        return None
    data, weight = (network.maker(node.input(index)) for index in (0, 1))
    if data is None or weight is None:
        return None
    absorbed, bias, last = [node], node.input(2), node
    clamps: list[Node] = []
    while (reader := network.only_reader(last.outputs[0])) is not None:
        if reader.operator == "QuantizeLinear" and reader.inputs[0] == last.outputs[0]:
            return Anchor(node, data, weight, bias, clamps, reader, absorbed)
        if reader.operator == "Add" and node.operator == "MatMul" and last is node:
            bias = next(name for name in reader.inputs if name != last.outputs[0])
        elif is_clamp(network, reader):
            clamps.append(reader)
        else:
            return None
        absorbed.append(reader)
        last = reader
    return None


def _integer_nodes(network: Network, anchor: Anchor) -> list[Node] | None:
    data = parameters_of(network, anchor.data, "DequantizeLinear")
    weight = parameters_of(network, anchor.weight, "DequantizeLinear")
    out = parameters_of(network, anchor.quantize, "QuantizeLinear")
    if data is None or weight is None or out is None:
        return None
    if not data.per_tensor or not out.per_tensor:
        return None
    if data.zero.dtype not in BYTE_TYPES or out.zero.dtype not in BYTE_TYPES:
        return None
    constant_first = anchor.data.inputs[0] in network.constants
    if out.zero.dtype != (weight if constant_first else data).zero.dtype:
        return None
    data_shape = network.types[anchor.data.inputs[0]].shape
    if weight.zero.dtype not in BYTE_TYPES or data_shape is None:
        return None
    values = network.constants.get(anchor.weight.inputs[0])
    of_matrix = anchor.node.operator == "MatMul" and values is not None and values.ndim == 2
    made = None
    if anchor.node.operator == "MatMul" and not (of_matrix and len(data_shape) <= 2):
        made = _matrix_product(network, anchor, data, weight, out)
    if made is None and values is not None and (anchor.node.operator != "MatMul" or of_matrix):
        made = _convolution(network, anchor, data, weight, out, values, data_shape)
    if made is None:
        return None
    return clipped(network, made, out, *integer_limits(network, anchor.clamps, out))


def _convolution(
    network: Network,
    anchor: Anchor,
    data: QuantizationParameters,
    weight: QuantizationParameters,
    out: QuantizationParameters,
    values: Array,
    shape: tuple[int, ...],
) -> list[Node] | None:
    """QLinearConv of data of ``shape`` by the constant weights ``values``."""
    node, name = anchor.node, anchor.node.name
    if not _has_form_of_convolution(node, shape):
        return None
    # Weights as (output channels, …); the axis of their scales is transposed with them.
    axis = weight.axis % values.ndim
    if node.operator == "MatMul" or (node.operator == "Gemm" and not node.attributes.get("transB")):
        values, axis = values.T, 1 - axis
    if not weight.per_tensor and axis != 0:
        return None
    if values.shape[0] == 0:
        return None
    limits = limits_of(network, anchor, out)
    steps = sum_steps(network, anchor.bias, zero_free(values, weight), data, weight, limits)
    if steps is None or not network.rounding.takes(name, steps.moved):
        return None
    values, weight, bias = stored(steps.weights, steps.parameters), steps.parameters, steps.bias
    kernel = values if node.operator == "Conv" else values.reshape(*values.shape, 1, 1)
    kernel, zero = like_data(kernel, weight.zero, data.zero.dtype)
    inputs = (
        *anchor.data.inputs[:2],
        network.add_constant(f"{name}_x_zero_point", data.zero.reshape(())),
        network.add_constant(f"{name}_weight", kernel),
        network.add_constant(f"{name}_weight_scale", _vector(weight.scale)),
        network.add_constant(f"{name}_weight_zero_point", _vector(zero)),
        anchor.quantize.inputs[1],
        network.add_constant(f"{name}_y_zero_point", out.zero.reshape(())),
        *([network.add_constant(f"{name}_bias", bias)] if anchor.bias else []),
    )
    if node.operator == "Conv":
        return [Node("QLinearConv", name, inputs, anchor.quantize.outputs, dict(node.attributes))]
    return _between_reshapes(network, name, inputs, anchor.quantize.outputs[0], shape)


def limits_of(network: Network, anchor: Anchor, out: QuantizationParameters) -> ResultLimits:
    """The range of the results of ``anchor``, narrowed by an integer Clip that follows."""
    low, high = integer_limits(network, anchor.clamps, out)
    clip = network.only_reader(anchor.quantize.outputs[0])
    if clip is not None and clip.operator == "Clip" and is_clamp(network, clip):
        floor, ceiling = (network.constants.get(clip.input(index)) for index in (1, 2))
        low = low if floor is None else min(max(low, int(floor.item())), high)
        high = high if ceiling is None else max(min(high, int(ceiling.item())), low)
    return ResultLimits.of(out, low, high)


def _has_form_of_convolution(node: Node, shape: tuple[int, ...]) -> bool:
    if node.operator == "Conv":
        return len(shape) in (3, 4)
    if node.operator == "MatMul":
        return len(shape) > 0
    plain = not node.attributes.get("transA", 0)
    factors = (node.attributes.get(name, 1.0) for name in ("alpha", "beta"))
    return len(shape) == 2 and plain and all(factor == 1.0 for factor in factors)


def _between_reshapes(
    network: Network,
    name: str,
    inputs: tuple[str, ...],
    output: str,
    shape: tuple[int, ...],
) -> list[Node]:
    """A product of matrices of ``shape`` by a constant matrix, as a convolution of 1×1 images."""
    tall, flat = (network.unused_name(f"{name}_{what}") for what in ("images", "result"))
    outputs, columns = network.constants[inputs[3]].shape[:2]
    rows, dtype = prod(shape[:-1]), network.types[output].dtype
    network.types[tall] = TensorType(dtype, (rows, columns, 1, 1))
    network.types[flat] = TensorType(dtype, (rows, outputs, 1, 1))
    shapes = [
        network.add_constant(f"{name}_{what}_shape", np.array(size, np.int64))
        for what, size in (
            ("images", network.types[tall].shape),
            ("result", network.types[output].shape or (*shape[:-1], outputs)),
        )
    ]
    return [
        Node("Reshape", f"{name}_images", (inputs[0], shapes[0]), (tall,)),
        Node("QLinearConv", name, (tall, *inputs[1:]), (flat,), {"kernel_shape": [1, 1]}),
        Node("Reshape", f"{name}_result", (flat, shapes[1]), (output,)),
    ]


def _matrix_product(
    network: Network,
    anchor: Anchor,
    data: QuantizationParameters,
    weight: QuantizationParameters,
    out: QuantizationParameters,
) -> list[Node] | None:
    """The QLinearMatMul of ``anchor``; None if there is a bias, which QLinearMatMul lacks, or if
    per-channel weights or factors of different types rule it out."""
    if anchor.node.operator != "MatMul" or anchor.bias or not weight.per_tensor:
        return None
    name, inputs = anchor.node.name, []
    for what, factor, own in (("a", anchor.data, data), ("b", anchor.weight, weight)):
        values, zero = network.constants.get(factor.inputs[0]), own.zero.reshape(())
        integers = factor.inputs[0]
        if zero.dtype != out.zero.dtype:
            if values is None:
                return None
            values, zero = like_data(values, zero, out.zero.dtype)
            integers = network.add_constant(f"{name}_{what}", values)
        zero_point = network.add_constant(f"{name}_{what}_zero_point", zero)
        inputs += [integers, factor.inputs[1], zero_point]
    inputs += [
        anchor.quantize.inputs[1],
        network.add_constant(f"{name}_y_zero_point", out.zero.reshape(())),
    ]
    return [Node("QLinearMatMul", name, tuple(inputs), anchor.quantize.outputs)]


def match_weights(network: Network, node: Node) -> bool:
    """Convert constant int8 weights of uint8 data to uint8: on processors without VNNI, ONNX
    Runtime saturates sums of two products of uint8 and int8."""
    places = SECOND_FACTOR.get((node.domain, node.operator))
    if places is None or len(node.inputs) <= places[1]:
        return False
    weight, zero = (network.constants.get(node.inputs[index]) for index in places)
    data = network.types.get(node.inputs[0])
    if weight is None or zero is None or data is None:
        return False
    if data.dtype != np.uint8 or weight.dtype != np.int8:
        return False
    inputs = list(node.inputs)
    for index, moved in zip(places, like_data(weight, zero, data.dtype), strict=True):
        inputs[index] = network.add_constant(f"{inputs[index]}_uint8", moved)
    network.nodes.replace(node, [replace(node, inputs=tuple(inputs))])
    return True


def like_data(weight: Array, zero: Array, dtype: np.dtype) -> tuple[Array, Array]:
    """Convert weights and zero point to the type of the data. Both are shifted by the same amount,
    so their difference is unchanged."""
    if weight.dtype == dtype:
        return weight, zero
    offset = 128 if dtype == np.uint8 else -128
    moved = [(item.astype(np.int16) + offset).astype(dtype) for item in (weight, zero)]
    return moved[0], moved[1]


def _vector(value: Array) -> Array:
    return value.reshape(()) if value.size == 1 else value.reshape(-1)
