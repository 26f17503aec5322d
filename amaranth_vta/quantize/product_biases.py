"""Adds the bias of a matrix product before its result is quantized."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import helper, numpy_helper

from amaranth_vta.sw.runtime.network.tile_layout import Array

# Greatest magnitude of a bias in steps of the sums; the sums fit int32, too.
_GREATEST_BIAS = 2**30
_DEQUANTIZED = "_DequantizeLinear_Output"


def remove_quantization_before_biases(model: onnx.ModelProto, given: onnx.ModelProto) -> None:
    """Remove, in the QDQ ``model`` that the quantizer made of ``given``, QuantizeLinear and
    DequantizeLinear between a MatMul with constant weights and the Add of a constant bias.

    The product and its bias are then one operator that rounds once, as a Gemm or a Conv is, and the
    bias is int32 in steps of the product's sums. Weights of nearly dead channels, in whose steps
    the bias would not fit, get larger scales.
    """
    graph = model.graph
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    outputs = {item.name for item in graph.output}
    makers = {name: node for node in graph.node for name in node.output}
    constants = {item.name: item for item in graph.initializer}
    values = {item.name: item for item in given.graph.initializer}

    def only_reader(name: str, operator: str) -> onnx.NodeProto | None:
        found = readers.get(name, [])
        alone = len(found) == 1 and name not in outputs and found[0].op_type == operator
        return found[0] if alone else None

    def scale_of(name: str) -> Array | None:
        """The scale of a dequantized tensor; None for other tensors."""
        maker = makers.get(name)
        if maker is None or maker.op_type != "DequantizeLinear" or maker.input[1] not in constants:
            return None
        return numpy_helper.to_array(constants[maker.input[1]])

    unread: list[str] = []
    for product in list(graph.node):
        if product.op_type != "MatMul" or product.input[1].removesuffix(_DEQUANTIZED) not in values:
            continue
        quantize = only_reader(product.output[0], "QuantizeLinear")
        dequantize = quantize and only_reader(quantize.output[0], "DequantizeLinear")
        add = dequantize and only_reader(dequantize.output[0], "Add")
        if quantize is None or dequantize is None or add is None:
            continue
        place = list(add.input).index(dequantize.output[0])
        bias = add.input[1 - place]
        value = values.get(bias.removesuffix(_DEQUANTIZED))
        scales = [scale_of(name) for name in product.input]
        if value is None or len(value.dims) != 1 or scales[0] is None or scales[1] is None:
            continue
        addend = numpy_helper.to_array(value).astype(np.float64)
        scale = _scale_for_bias(addend, scales[0], scales[1])
        if (scale > scales[1]).any():
            weight = makers[product.input[1]]
            real = numpy_helper.to_array(values[product.input[1].removesuffix(_DEQUANTIZED)])
            _quantize_again(real, scale, weight, constants)
        steps = (scales[0] * scale).astype(np.float32)
        whole = np.rint(addend / steps)
        name = f"{product.output[0]}_bias"
        parts = {
            f"{name}_quantized": whole.astype(np.int32),
            f"{name}_scale": steps,
            f"{name}_zero_point": np.zeros_like(steps, np.int32),
        }
        graph.initializer.extend(numpy_helper.from_array(part, key) for key, part in parts.items())
        dequantized = helper.make_node(
            "DequantizeLinear",
            list(parts),
            [f"{name}{_DEQUANTIZED}"],
            f"{name}_DequantizeLinear",
            axis=0,
        )
        graph.node.insert(0, dequantized)
        add.input[place], add.input[1 - place] = product.output[0], dequantized.output[0]
        graph.node.remove(quantize)
        graph.node.remove(dequantize)
        unread += [bias, *quantize.input[1:], *dequantize.input[1:]]
    _drop(graph, unread)


def _scale_for_bias(bias: Array, data: Array, weight: Array) -> Array:
    """The scale ``weight`` of weights, scalar or (channels,), enlarged where ``bias`` would exceed
    `_GREATEST_BIAS` steps of the sums; float32.
    """
    least = np.abs(bias) / (data.astype(np.float64) * _GREATEST_BIAS)
    needed = least if weight.size > 1 else least.max()
    # Rounding to float32 must not make a scale too small.
    larger = np.nextafter(needed.astype(np.float32), np.float32(np.inf))
    return np.where(needed > weight, larger, weight).reshape(weight.shape).astype(np.float32)


def _quantize_again(
    real: Array, scale: Array, dequantize: onnx.NodeProto, constants: dict[str, onnx.TensorProto]
) -> None:
    """Quantize the weights ``real`` with a larger ``scale``, scalar or of the last axis, in place
    of what ``dequantize`` reads.
    """
    integers, zero = (constants[dequantize.input[index]] for index in (0, 2))
    old, zeros = numpy_helper.to_array(integers), numpy_helper.to_array(zero)
    made = np.rint(real.astype(np.float64) / scale) + zeros.astype(np.float64)
    for item, value in (
        (integers, made.astype(old.dtype)),
        (constants[dequantize.input[1]], scale),
    ):
        item.CopyFrom(numpy_helper.from_array(value, item.name))


def _drop(graph: onnx.GraphProto, names: Iterable[str]) -> None:
    """Remove those of the tensors ``names``, made of constants by the quantizer, that no node
    reads, and what they are made of.
    """
    makers = {name: node for node in graph.node for name in node.output}
    constants = {item.name: item for item in graph.initializer}
    left = list(names)
    while left:
        name = left.pop()
        if any(name in node.input for node in graph.node):
            continue
        if name in makers:
            node = makers.pop(name)
            graph.node.remove(node)
            left += node.input
        elif name in constants:
            graph.initializer.remove(constants.pop(name))
