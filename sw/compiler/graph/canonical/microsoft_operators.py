"""Canonicalization rules that replace com.microsoft operators by standard ONNX operators."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import MICROSOFT, Node

from .quantization import BYTE_TYPES, QuantizationParameters


def float_average(network: Network, node: Node) -> bool:
    """QLinearAveragePool becomes DequantizeLinear → AveragePool → QuantizeLinear, unless it
    `rounds_to_odd`."""
    if node.operator != "QLinearAveragePool" or node.domain != MICROSOFT:
        return False
    if node.attributes.get("channels_last", 0) or not node.input(4):
        return False
    source, result = node.inputs[0], node.outputs[0]
    if network.types[result].shape is None or rounds_to_odd(network, node):
        return False
    given, made = (network.unused_name(f"{name}_real") for name in (source, result))
    for name, real in ((source, given), (result, made)):
        network.types[real] = replace(network.types[name], dtype=np.dtype(np.float32))
    attributes = {name: v for name, v in node.attributes.items() if name != "channels_last"}
    network.nodes.replace(
        node,
        [
            Node("DequantizeLinear", given, node.inputs[:3], (given,)),
            Node("AveragePool", node.name, (given,), (made,), attributes),
            Node("QuantizeLinear", made, (made, *node.inputs[3:5]), (result,)),
        ],
    )
    return True


def rounds_to_odd(network: Network, node: Node) -> bool:
    """Whether a QLinearAveragePool differs from QuantizeLinear of the average: it rounds half to
    even after adding the zero point, which matters if the zero point is odd and ties can occur."""
    given, made = (_parameters(network, *node.inputs[at : at + 2]) for at in (1, 3))
    if given is None or made is None:
        return True
    if made.zero.item() % 2 == 0:
        return False
    ratio = Fraction(float(given.scale / made.scale))
    taps = prod(node.attributes["kernel_shape"])
    # An average of `count` pixels is a tie, an odd number `j` of half steps, if the sum of the
    # pixels, j · count / (2 · ratio), is an integer. So j is a multiple of the denominator, and at
    # most 2 · 255 · ratio.
    steps = ((count / (2 * ratio)).denominator for count in range(1, taps + 1))
    return any(step % 2 and step <= 2 * 255 * ratio for step in steps)


def split_concatenation(network: Network, node: Node) -> bool:
    """Replace QLinearConcat by Concat. Operands with other parameters are requantized to the
    result's by DequantizeLinear and QuantizeLinear."""
    if node.operator != "QLinearConcat" or node.domain != MICROSOFT:
        return False
    wanted = _parameters(network, *node.inputs[:2])
    operands = [node.inputs[index : index + 3] for index in range(2, len(node.inputs), 3)]
    given = [_parameters(network, *operand[1:]) for operand in operands]
    if wanted is None or any(item is None for item in given):
        return False
    made: list[Node] = []
    names = []
    for number, (operand, own) in enumerate(zip(operands, given, strict=True)):
        names.append(operand[0])
        if own is None or own.same_as(wanted):
            continue
        name = f"{node.name}_{number}"
        real, moved = (network.unused_name(f"{name}_{what}") for what in ("real", "rescaled"))
        network.types[moved] = network.types[operand[0]]
        network.types[real] = replace(network.types[operand[0]], dtype=np.dtype(np.float32))
        made.append(Node("DequantizeLinear", real, tuple(operand), (real,)))
        made.append(Node("QuantizeLinear", moved, (real, *node.inputs[:2]), (moved,)))
        names[-1] = moved
    concat = Node("Concat", node.name, tuple(names), node.outputs, dict(node.attributes))
    network.nodes.replace(node, [*made, concat])
    return True


def _parameters(network: Network, scale: str, zero: str = "") -> QuantizationParameters | None:
    """Per-tensor scale and zero point; None if they are not constant."""
    values = [network.constants.get(name) for name in (scale, zero)]
    if values[0] is None or values[1] is None or values[1].dtype not in BYTE_TYPES:
        return None
    if values[0].size != 1 or values[1].size != 1 or values[0].dtype != np.float32:
        return None
    return QuantizationParameters(values[0].reshape(()), values[1].reshape(()), 1)
