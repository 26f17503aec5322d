"""Checks the reasons for running operators on the host against the network: `falsehood`."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node

# Checks one claim of a reason against the network; the match holds the names in the claim.
Claim = Callable[[Network, Node, re.Match[str]], bool]

# Operators that the machine supports between quantizations.
_KNOWN = frozenset({"Sigmoid", "Tanh", "Sqrt", "Sin", "Exp", "Erf", "Gelu", "Relu", "Clip"})
_KNOWN |= {"Conv", "MatMul", "Gemm", "MaxPool", "Concat", "Pad", "Transpose", "Slice"}
_PLACES = {"input": 0, "first factor": 0, "weights": 1, "second factor": 1, "bias": 2}


def falsehood(network: Network, node: Node, reason: str) -> str:
    """The first false claim in the ``reason`` for ``node`` of the canonical ``network``; empty if
    all claims are true."""
    for pattern, claim in _CLAIMS.items():
        for found in re.finditer(pattern, reason):
            if not claim(network, node, found):
                return found[0]
    return ""


def _tensor(network: Network, node: Node, called: str) -> str:
    """The name of the tensor that a reason refers to as ``called``."""
    if called.startswith("operand "):
        return called.removeprefix("operand ")
    return node.input(_PLACES[called])


def _dequantize(network: Network, name: str) -> Node | None:
    maker = network.maker(name)
    return maker if maker is not None and maker.operator == "DequantizeLinear" else None


def _in_float(network: Network, node: Node, found: re.Match[str]) -> bool:
    name = _tensor(network, node, found[1])
    return network.types[name].dtype.kind == "f" and _dequantize(network, name) is None


def _is_sum(network: Network, node: Node, found: re.Match[str]) -> bool:
    maker = _dequantize(network, found[1])
    if maker is None or maker.inputs[0] in network.constants:
        return False
    return network.types[maker.inputs[0]].dtype == np.int32


def _comes_from(network: Network, node: Node, found: re.Match[str]) -> bool:
    maker = network.maker(_tensor(network, node, found[1]))
    return maker is not None and maker.operator == found[2]


def _is_constant(network: Network, node: Node, found: re.Match[str]) -> bool:
    return _tensor(network, node, found[1]) in network.constants


def _is_input(network: Network, node: Node, found: re.Match[str]) -> bool:
    return _tensor(network, node, found[1]) in network.inputs


def _is_unknown(network: Network, node: Node, found: re.Match[str]) -> bool:
    name = _tensor(network, node, found[1])
    maker = _dequantize(network, name)
    return name not in network.constants and (
        maker is None or not set(maker.reads) <= network.constants.keys()
    )


def _scale(network: Network, node: Node, found: re.Match[str]) -> bool:
    maker = _dequantize(network, _tensor(network, node, found[1]))
    if maker is None:
        return False
    if found[2].startswith("each block"):
        return bool(maker.attributes.get("block_size"))
    scale = network.constants.get(maker.inputs[1])
    if found[2].startswith("that is known"):
        return scale is None
    if scale is None:
        return False
    if found[2].startswith("that is not finite"):
        return not np.isfinite(scale).all()
    return bool((scale < 0).any())


def _type(network: Network, node: Node, found: re.Match[str]) -> bool:
    name = _tensor(network, node, found[1])
    maker = _dequantize(network, name)
    types = {network.types[item].dtype.name for item in (name, *(maker.inputs if maker else ()))}
    return found[2] in types and found[2] not in ("int8", "uint8")


def _several_scales(network: Network, node: Node, found: re.Match[str]) -> bool:
    maker = _dequantize(network, _tensor(network, node, found[1]))
    return maker is not None and network.constants[maker.inputs[1]].size > 1


def _lacks(network: Network, node: Node, found: re.Match[str]) -> bool:
    return found[1] == node.operator and node.operator not in _KNOWN


def _follows_host(network: Network, node: Node, found: re.Match[str]) -> bool:
    """Whether an operator computes an operand; inputs and constants follow no operator."""
    return any(network.maker(name) is not None for name in node.reads)


def _not_quantized(network: Network, node: Node, found: re.Match[str]) -> bool:
    readers = network.nodes.readers(node.outputs[0])
    if len(readers) != 1 or node.outputs[0] in network.outputs:
        return True
    quantize = readers[0]
    if quantize.operator != "QuantizeLinear":
        return quantize.operator not in ("Relu", "Clip")
    scale = network.constants.get(quantize.inputs[1])
    dtype = network.types[quantize.outputs[0]].dtype
    return scale is None or scale.size > 1 or dtype not in (np.int8, np.uint8)


def _dimensions(network: Network, node: Node, found: re.Match[str]) -> bool:
    shape = network.types[found[1]].shape
    count = {"one": 1, "no": 0}.get(found[2]) if not found[2].isdigit() else int(found[2])
    return shape is not None and len(shape) == count


def _shape_is_unknown(network: Network, node: Node, found: re.Match[str]) -> bool:
    return network.types[found[1]].shape is None


def _float_types(network: Network, node: Node, found: re.Match[str]) -> bool:
    """Quantizations have one side in float."""
    return node.operator in ("QuantizeLinear", "DequantizeLinear")


_NAMED = r"its (operand \S+|input|weights|first factor|second factor|bias) "
_CLAIMS: dict[str, Claim] = {
    r"its (operand \S+) is in float$": _in_float,
    r"its operand (\S+) is a product's result": _is_sum,
    _NAMED + r"comes? from (\w+) in float": _comes_from,
    _NAMED + r"(?:is a constant|are constants) in float": _is_constant,
    _NAMED + r"(?:is|are) an input of the network": _is_input,
    _NAMED + r"(?:is|are) known only at run time": _is_unknown,
    _NAMED + r"(?:has|have) a scale (?:of|for)? ?(.*)": _scale,
    _NAMED + r"(?:is|are) of (\w+)": _type,
    _NAMED + r"(?:has|have) more than one scale": _several_scales,
    r"^the machine has no (\w+)$": _lacks,
    r"^it follows an operator on the host$": _follows_host,
    r"^its result is not quantized to 8 bits at one scale$": _not_quantized,
    r"^(\S+) has (\w+) dimensions?": _dimensions,
    r"^the shape of (\S+) is known only at run time": _shape_is_unknown,
    r"^float tensors are the host's$": _float_types,
}
