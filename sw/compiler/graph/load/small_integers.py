"""Widen 2-bit and 4-bit integers to bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import helper, numpy_helper

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node

# The byte type and the range of values of each small type.
_BYTES: dict[str, tuple[np.dtype, int, int]] = {
    "int2": (np.dtype(np.int8), -2, 1),
    "int4": (np.dtype(np.int8), -8, 7),
    "uint2": (np.dtype(np.uint8), 0, 3),
    "uint4": (np.dtype(np.uint8), 0, 15),
}
# Operators with 2-bit or 4-bit results that have the same meaning on bytes. ONNX Runtime supports
# no others but Cast.
_KNOWN = frozenset({"Constant", "Identity", "QuantizeLinear"})


def widen_small_integers(network: Network) -> None:
    """Store 2-bit and 4-bit integers as int8 or uint8, with a Clip after QuantizeLinear.

    ONNX Runtime neither returns such tensors nor moves their elements. The network is unchanged if
    one is an input, or if an operator other than QuantizeLinear computes one at run time. Operands
    of operators that only ONNX Runtime has, such as GatherBlockQuantized, keep their types.
    """
    foreign = {name for node in network.nodes if node.domain for name in node.reads}
    small = {name for name, info in network.types.items() if info.dtype.name in _BYTES} - foreign
    makers = [maker for name in small if (maker := network.maker(name)) is not None]
    if not small or any(node.operator not in _KNOWN or node.domain for node in makers):
        return
    if small & {*network.inputs}:
        return
    for node in makers:
        if node.operator == "Constant":
            network.constants[node.outputs[0]] = numpy_helper.to_array(node.attributes["value"])
            network.nodes.remove(node)
        elif node.operator == "QuantizeLinear":
            _clip(network, node)
    for name in small:
        wide, _, _ = _BYTES[network.types[name].dtype.name]
        network.types[name] = replace(network.types[name], dtype=wide)
        if name in network.constants:
            network.constants[name] = network.constants[name].astype(wide)


def _clip(network: Network, node: Node) -> None:
    """Make ``node`` quantize to bytes, and clip these to the range of its small type."""
    result = node.outputs[0]
    wide, low, high = _BYTES[network.types[result].dtype.name]
    unclipped = network.unused_name(f"{result}_unclipped")
    network.types[unclipped] = replace(network.types[result], dtype=wide)
    bounds = [
        network.add_constant(f"{result}_{what}", np.array(value, wide))
        for what, value in (("low", low), ("high", high))
    ]
    attributes = {**node.attributes, "output_dtype": helper.np_dtype_to_tensor_dtype(wide)}
    network.nodes.replace(
        node,
        [
            replace(node, outputs=(unclipped,), attributes=attributes),
            Node("Clip", f"{node.name}_clip", (unclipped, *bounds), (result,)),
        ],
    )
