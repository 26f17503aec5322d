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
    return f"{what} is in float: its bias, its weights or its attributes are no integer product's"


def _adds_bias(network: Network, node: Node, reader: Node) -> bool:
    """Whether ``reader``, behind the product ``node``, adds a constant."""
    if node.operator != "MatMul" or reader.operator != "Add":
        return False
    return any(constant_values(network, name) is not None for name in reader.inputs)
