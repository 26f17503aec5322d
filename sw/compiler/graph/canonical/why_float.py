"""Why an operator of the canonical form is still in float, as facts that the file shows."""

from __future__ import annotations

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node

from .integer_products import integer_bias, is_of_channels
from .matrix_forms import constant_values
from .quantization import (
    BYTE_TYPES,
    QuantizationParameters,
    is_clamp,
    parameters_of,
)

# Axes of images (N, C, H, W); sequences have one less.
_MAX_AXES = 4
_SUMS = frozenset({"ConvInteger", "MatMulInteger"})


def why_float(network: Network, node: Node) -> str:
    """The reason why a Conv, ConvTranspose, Gemm or MatMul did not become one on integers."""
    what = node.operator
    names = ("first factor", "second factor") if what == "MatMul" else ("input", "weights")
    found = []
    for index, name in enumerate(names):
        reason = _of_operand(network, node.inputs[index], name, whole=index == 0)
        if reason:
            return f"{what} is in float: {reason}"
        maker = network.maker(node.inputs[index])
        parameters = parameters_of(network, maker, "DequantizeLinear")
        assert maker is not None
        assert parameters is not None
        found.append((maker.inputs[0], parameters))
    shape = network.types[node.inputs[0]].shape
    if shape is None:
        return f"{what} is in float: the shape of its input is not known"
    if what in ("Conv", "ConvTranspose") and len(shape) > _MAX_AXES:
        return f"its images have {len(shape) - 2} dimensions; the machine's have two"
    reason = _of_second(network, node, *found[1]) or _of_bias(network, node, found[0][1], *found[1])
    return f"{what} is in float: {reason or _of_result(network, node)}"


def is_whole_sum(network: Network, name: str) -> bool:
    """Whether a tensor has the sums of a product of integers, perhaps with a bias."""
    maker = network.maker(name)
    while maker is not None and maker.operator == "Add" and not maker.domain:
        given = [item for item in maker.inputs if item not in network.constants]
        maker = network.maker(given[0]) if given else None
    return maker is not None and maker.operator in _SUMS


def why_in_float(network: Network, name: str) -> str:
    """Why an operand is not dequantized from 8-bit integers with one scale; empty if it is."""
    return _of_operand(network, name, f"operand {name}", whole=True)


def why_no_parameters(network: Network, node: Node) -> str:
    """Why parameters of a QuantizeLinear or DequantizeLinear are unusable, as a predicate of the
    tensor; empty if they are usable."""
    if parameters_of(network, node, node.operator) is not None:
        return ""
    if node.domain:
        return f"has the domain {node.domain}"
    if block := node.attributes.get("block_size"):
        return f"has a scale for each block of {block} elements"
    scale = network.constants.get(node.input(1))
    if scale is None:
        return "has a scale that is known only at run time"
    if scale.dtype != np.float32:
        return f"has a scale of {scale.dtype}, not of float32"
    if not np.isfinite(scale).all():
        return "has a scale that is not finite"
    if scale.size and scale.min() < 0:
        return f"has a scale of {scale.min():g}, which is negative"
    if not scale.all() and node.operator == "QuantizeLinear":
        return "has a scale of 0"
    return "has a zero point that is known only at run time"


def _of_operand(network: Network, name: str, called: str, whole: bool) -> str:
    """Why an operand is not dequantized from 8-bit integers; empty if it is. ``whole`` requires one
    scale for the whole tensor."""
    many = called == "weights"
    maker, info = network.maker(name), network.types[name]
    if info.dtype.kind != "f":
        return f"its {called} {'are' if many else 'is'} of {info.dtype}"
    if name in network.constants:
        return f"its {called} {'are constants' if many else 'is a constant'} in float"
    if maker is None:
        return f"its {called} {'are' if many else 'is'} an input of the network in float"
    if maker.operator != "DequantizeLinear":
        if not called.startswith("operand"):
            return f"its {called} {'come' if many else 'comes'} from {maker.operator} in float"
        return f"its {called} is in float"
    if problem := why_no_parameters(network, maker):
        verb, rest = problem.split(" ", 1)
        return f"its {called} {'have' if many else verb} {rest}"
    parameters = parameters_of(network, maker, "DequantizeLinear")
    dtype = network.types[maker.inputs[0]].dtype
    if dtype == np.int32 and is_whole_sum(network, maker.inputs[0]):
        return f"its {called} is a product's result, which nothing quantizes"
    if dtype not in BYTE_TYPES:
        return f"its {called} {'are' if many else 'is'} of {dtype}, not int8 or uint8"
    if whole and parameters is not None and not parameters.per_tensor:
        return f"its {called} {'have' if many else 'has'} more than one scale"
    return ""


def _of_second(
    network: Network, node: Node, integers: str, parameters: QuantizationParameters
) -> str:
    """Why a product of integers cannot have the second factor of ``node``; empty if it can."""
    values = network.constants.get(integers)
    if values is None:
        if node.operator != "MatMul":
            return "its weights are known only at run time"
        return "" if parameters.per_tensor else "its second factor has more than one scale"
    if parameters.per_tensor:
        return ""
    if node.operator == "MatMul" and values.ndim != 2:
        return f"its second factor has {values.ndim} dimensions and more than one scale"
    wanted = {"Conv": 0, "ConvTranspose": 1, "MatMul": values.ndim - 1}.get(node.operator)
    if wanted is None:
        wanted = 0 if node.attributes.get("transB") else 1
    axis = parameters.axis % values.ndim
    if axis != wanted:
        return f"its weights have scales along axis {axis}; those of its results are along {wanted}"
    return ""


def _of_bias(
    network: Network,
    node: Node,
    data: QuantizationParameters,
    integers: str,
    weight: QuantizationParameters,
) -> str:
    """Why a product of integers cannot have the bias or factors of ``node``; empty if it can."""
    if node.operator == "Gemm":
        for name, usual in (("transA", 0), ("alpha", 1.0), ("beta", 1.0)):
            if (given := node.attributes.get(name, usual)) != usual:
                return f"its {name} is {given:g}"
    if not node.input(2):
        return ""
    bias, values = constant_values(network, node.input(2)), network.constants.get(integers)
    if bias is None:
        maker = network.maker(node.input(2))
        known = maker is not None and maker.inputs and maker.inputs[0] in network.constants
        if known and maker is not None and maker.operator == "DequantizeLinear":
            return f"its bias {why_no_parameters(network, maker)}"
        return "its bias is known only at run time"
    if values is None:
        return ""
    transposed = node.operator == "Gemm" and node.attributes.get("transB")
    channels = values.shape[0 if node.operator == "Conv" or transposed else 1]
    channels *= node.attributes.get("group", 1) if node.operator == "ConvTranspose" else 1
    if not is_of_channels(bias, channels):
        return "its bias differs within a channel"
    fits = node.operator == "ConvTranspose" or weight.scale.size not in (1, channels)
    if not fits and integer_bias(network, node.input(2), data, weight, channels) is None:
        return "its bias is more steps of its sums than int32 holds"
    return ""


def _of_result(network: Network, node: Node) -> str:
    name = node.outputs[0]
    while (reader := network.only_reader(name)) is not None and reader.operator != "QuantizeLinear":
        if not is_clamp(network, reader) and not _adds_bias(network, node, reader):
            return f"{reader.operator} follows, and nothing quantizes in between"
        name = reader.outputs[0]
    if reader is None:
        if name in network.outputs:
            return "its result is an output of the network in float"
        return "several operators read its result"
    given = parameters_of(network, network.maker(node.inputs[0]), "DequantizeLinear")
    out = parameters_of(network, reader, "QuantizeLinear")
    if out is None:
        return f"its result {why_no_parameters(network, reader)}"
    if not out.per_tensor:
        return "its result has more than one scale"
    if given is not None and given.zero.dtype != out.zero.dtype:
        return f"it makes {out.zero.dtype} of {given.zero.dtype}"
    return "no operator of ONNX on integers has its attributes"


def _adds_bias(network: Network, node: Node, reader: Node) -> bool:
    """Whether ``reader``, behind the product ``node``, adds a constant."""
    if node.operator != "MatMul" or reader.operator != "Add":
        return False
    return any(constant_values(network, name) is not None for name in reader.inputs)
