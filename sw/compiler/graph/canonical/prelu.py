"""Decompose functions that are linear on each side of zero.

PRelu with per-channel slopes is neither a linear function nor a single table. It is the sum of a
positive and a negative side, each of which is linear where the other one is 0.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node

from .matrix_forms import constant_values
from .quantization import BYTE_TYPES, parameters_of


def sides_of_prelu(network: Network, node: Node) -> bool:
    """Rewrite DequantizeLinear → PRelu with per-channel slopes → QuantizeLinear as the sum of Relu
    → QuantizeLinear and Min with 0 → Mul → QuantizeLinear."""
    if node.domain or node.operator != "PRelu":
        return False
    given = parameters_of(network, network.maker(node.inputs[0]), "DequantizeLinear")
    quantize = network.only_reader(node.outputs[0])
    out = parameters_of(network, quantize, "QuantizeLinear")
    slopes = constant_values(network, node.inputs[1])
    if given is None or quantize is None or out is None or slopes is None:
        return False
    if not given.per_tensor or not out.per_tensor or out.zero.dtype not in BYTE_TYPES:
        return False
    of_channels = max(slopes.shape, default=1) == slopes.size > 1
    if slopes.dtype != np.float32 or not of_channels or not np.isfinite(slopes).all():
        return False
    real, name = network.types[node.inputs[0]], node.name
    zero = network.add_constant(f"{name}_zero", np.array(0, np.float32))
    factors = network.add_constant(f"{name}_slopes", slopes)
    made: list[Node] = []

    def add(operator: str, what: str, *inputs: str) -> str:
        result = network.unused_name(f"{name}_{what}")
        integer = operator == "QuantizeLinear"
        network.types[result] = replace(real, dtype=out.zero.dtype if integer else real.dtype)
        made.append(Node(operator, result, inputs, (result,)))
        return result

    parameters = quantize.inputs[1:]
    sides = [
        add("Relu", "positive", node.inputs[0]),
        add("Mul", "scaled", add("Min", "negative", node.inputs[0], zero), factors),
    ]
    parts = [
        add(
            "DequantizeLinear",
            f"side_{number}",
            add("QuantizeLinear", f"side_{number}_integer", side, *parameters),
            *parameters,
        )
        for number, side in enumerate(sides)
    ]
    total = Node("Add", name, tuple(parts), node.outputs)
    network.nodes.replace(node, [*made, total])
    return True
