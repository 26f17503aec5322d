"""Why a product of the canonical form is still in float."""

from __future__ import annotations

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node

from .matrix_forms import constant_values
from .quantization import BYTE_TYPES, is_clamp, parameters_of

# Axes of images (N, C, H, W); sequences have one less.
_MAX_AXES = 4


def why_float(network: Network, node: Node) -> str:
    """The reason why a Conv, ConvTranspose, Gemm or MatMul did not become one on integers."""
    what = node.operator
    if node.name in network.rounding.refused:
        return f"{what} is in float: {moved_too_far(network, node)}"
    names = ("first factor", "second factor") if what == "MatMul" else ("input", "weights")
    for index, name in enumerate(names):
        maker = network.maker(node.inputs[index])
        parameters = parameters_of(network, maker, "DequantizeLinear")
        if maker is not None and parameters is None and maker.operator == "DequantizeLinear":
            return f"{what} is in float: the scale of its {name} is not a positive float32 constant"
        if maker is None or parameters is None:
            return f"{what} is in float: nothing quantizes its {name}"
        if parameters.zero.dtype not in BYTE_TYPES:
            dtype = network.types[maker.inputs[0]].dtype
            return f"{what} is in float: its {name} is of {dtype}, not int8 or uint8"
        if index == 0 and not parameters.per_tensor:
            return f"{what} is in float: its {name} has more than one scale"
    shape = network.types[node.inputs[0]].shape
    if shape is None:
        return f"{what} is in float: the shape of its input is not known"
    if what in ("Conv", "ConvTranspose") and len(shape) > _MAX_AXES:
        return f"its images have {len(shape) - 2} dimensions; the machine's have two"
    return _of_result(network, node)


def moved_too_far(network: Network, product: Node) -> str:
    """Why the result of a product of integers, with a bias that is not, is not one on integers."""
    steps = network.rounding.refused[product.name]
    return (
        f"rounding its bias to steps of the sums could move results by {steps:.2g} steps "
        "(--allow-rounding)"
    )


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
    """Name the operand or attribute for which a quantized product has no integer form."""
    what = node.operator
    weight = network.maker(node.inputs[1])
    parameters = parameters_of(network, weight, "DequantizeLinear")
    values = None if weight is None else network.constants.get(weight.inputs[0])
    bias = _bias(network, node)
    if values is None and what != "MatMul":
        return "its weights are computed by the network, not constant"
    # Axis of the outputs: 0 for weights (outputs, inputs, …), 1 for weights (inputs, outputs, …).
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
    """Name of the bias of a product ``node``; empty without a bias."""
    if node.operator != "MatMul":
        return node.input(2)
    reader = network.only_reader(node.outputs[0])
    if reader is None or not _adds_bias(network, node, reader):
        return ""
    return next(name for name in reader.inputs if name != node.outputs[0])


def _adds_bias(network: Network, node: Node, reader: Node) -> bool:
    """Whether ``reader``, behind the product ``node``, adds a constant."""
    if node.operator != "MatMul" or reader.operator != "Add":
        return False
    return any(constant_values(network, name) is not None for name in reader.inputs)
