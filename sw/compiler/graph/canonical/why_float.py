"""Explain why an operator of the canonical form is still in float, from facts shown in the file."""

from __future__ import annotations

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node

from .matrix_forms import constant_values
from .quantization import (
    BYTE_TYPES,
    is_clamp,
    parameters_of,
)

# Rank of images (N, C, H, W); sequences have one axis less.
_MAX_AXES = 4
_SUMS = frozenset({"ConvInteger", "MatMulInteger"})


def why_float(network: Network, node: Node) -> str:
    """Why a Conv, ConvTranspose, Gemm or MatMul was not rewritten as an integer operator."""
    what = node.operator
    if node.name in network.rounding.refused:
        return f"{what} is in float: {moved_too_far(network, node)}"
    names = ("first factor", "second factor") if what == "MatMul" else ("input", "weights")
    for index, name in enumerate(names):
        reason = _of_operand(network, node.inputs[index], name, whole=index == 0)
        if reason:
            return f"{what} is in float: {reason}"
    shape = network.types[node.inputs[0]].shape
    if shape is None:
        return f"{what} is in float: the shape of its input is not known"
    if what in ("Conv", "ConvTranspose") and len(shape) > _MAX_AXES:
        return f"its images have {len(shape) - 2} dimensions; the machine's have two"
    return _of_result(network, node)


def moved_too_far(network: Network, product: Node) -> str:
    """Why a product was not requantized: rounding its bias could move results too far."""
    steps = network.rounding.refused[product.name]
    return (
        f"rounding its bias to steps of the sums could move results by {steps:.2g} steps "
        "(--allow-rounding)"
    )


def is_whole_sum(network: Network, name: str) -> bool:
    """Whether a tensor has the int32 sums of an integer product, perhaps with a bias."""
    maker = network.maker(name)
    while maker is not None and maker.operator == "Add" and not maker.domain:
        given = [item for item in maker.inputs if item not in network.constants]
        maker = network.maker(given[0]) if given else None
    return maker is not None and maker.operator in _SUMS


def why_in_float(network: Network, name: str) -> str:
    """Why an operand is not dequantized from 8-bit integers with one scale; empty if it is."""
    return _of_operand(network, name, f"operand {name}", whole=True)


def why_no_parameters(network: Network, node: Node) -> str:
    """Why parameters of a QuantizeLinear or DequantizeLinear are unusable, as a predicate about the
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


def _of_result(network: Network, node: Node) -> str:
    what, name = node.operator, node.outputs[0]
    while (reader := network.only_reader(name)) is not None and reader.operator != "QuantizeLinear":
        if not is_clamp(network, reader) and not _adds_bias(network, node, reader):
            return (
                f"{what} is in float: {reader.operator} follows, and nothing quantizes in between"
            )
        name = reader.outputs[0]
    if reader is None:
        return f"{what} is in float: its result is not quantized at once"
    given = parameters_of(network, network.maker(node.inputs[0]), "DequantizeLinear")
    out = parameters_of(network, reader, "QuantizeLinear")
    if out is None or given is None or not out.per_tensor:
        return f"{what} is in float: its result has more than one scale"
    if given.zero.dtype != out.zero.dtype:
        return f"{what} is in float: it makes {out.zero.dtype} of {given.zero.dtype}"
    return _of_operands(network, node)


def _of_operands(network: Network, node: Node) -> str:
    """Describe the operand or attribute because of which a quantized product has no integer
    form."""
    what = node.operator
    weight = network.maker(node.inputs[1])
    parameters = parameters_of(network, weight, "DequantizeLinear")
    values = None if weight is None else network.constants.get(weight.inputs[0])
    bias = _bias(network, node)
    if values is None and what != "MatMul":
        return "its weights are computed by the network, not constant"
    # Axis of the output channels: 0 in weights (outputs, inputs, …), 1 in weights (inputs, outputs,
    # …).
    turned = what in ("ConvTranspose", "MatMul") or (what == "Gemm" and not _is_set(node, "transB"))
    axis = 1 if turned else 0
    two = values is None or values.ndim != 2
    if parameters is not None and not parameters.per_tensor:
        if what == "MatMul" and two:
            return "its second factor is no constant matrix and has more than one scale"
        if values is not None and parameters.axis % values.ndim != axis:
            return f"its weights have scales along axis {parameters.axis}, not of their outputs"
    if what == "MatMul" and two:
        if bias:
            return "a bias is added, and its second factor is no constant matrix"
        return "its factors differ in type"
    alpha, beta = (float(node.attributes.get(name, 1)) for name in ("alpha", "beta"))
    if what == "Gemm" and (alpha, beta) != (1, 1):
        return f"its alpha is {alpha:g} and its beta {beta:g}"
    if bias:
        added = constant_values(network, bias)
        if added is None:
            return "its bias is computed by the network, not constant"
        if added.size > 1 and added.shape[-1:] != (added.size,):
            return f"its bias has the shape {added.shape}, not that of its output channels"
        return "its bias does not fit int32 at the scale of its sums"
    return "its output_shape is larger than what its windows cover"


def _is_set(node: Node, attribute: str) -> bool:
    return bool(node.attributes.get(attribute, 0))


def _bias(network: Network, node: Node) -> str:
    """Name of the bias of the product ``node``; empty without a bias."""
    if node.operator != "MatMul":
        return node.input(2)
    reader = network.only_reader(node.outputs[0])
    if reader is None or not _adds_bias(network, node, reader):
        return ""
    return next(name for name in reader.inputs if name != node.outputs[0])


def _adds_bias(network: Network, node: Node, reader: Node) -> bool:
    """Whether ``reader``, after the product ``node``, adds a constant."""
    if node.operator != "MatMul" or reader.operator != "Add":
        return False
    return any(constant_values(network, name) is not None for name in reader.inputs)
