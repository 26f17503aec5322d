"""Canonicalization rule that broadcasts one value per channel over an image.

The gate of a squeeze-and-excitation block is an image of one pixel that scales every pixel of
another image. Resizing it to that image's size makes it an ordinary operand.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from amaranth_vta.sw.compiler.graph.integer_operators import DOMAIN, LOOKUP_PAIR
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import MICROSOFT, Node

from .quantization import BYTE_TYPES, parameters_of

# Input positions of both operands, by domain and operator. In integer operators, each operand is
# followed by its scale and zero point.
_OPERANDS = {
    ("", "Add"): (0, 1),
    ("", "Mul"): (0, 1),
    (MICROSOFT, "QLinearAdd"): (0, 3),
    (MICROSOFT, "QLinearMul"): (0, 3),
    (DOMAIN, LOOKUP_PAIR): (0, 1),
}


def repeat_pixel(network: Network, node: Node) -> bool:
    """Resize a pixel (N, C, 1, 1) to the size of the image (N, C, H, W) that it is added to or
    multiplied with. Both are quantized, and the Resize is on integers."""
    places = _OPERANDS.get((node.domain, node.operator))
    if places is None:
        return False
    first, second = (_shape(network, node.inputs[at]) for at in places)
    for at, own, other in ((places[0], first, second), (places[1], second, first)):
        if own is None or other is None or len(own) != 4 or len(other) != 4:
            return False
        if own[2:] == (1, 1) and own[:2] == other[:2] and other[2:] != (1, 1):
            return _repeat(network, node, at, other)
    return False


def _repeat(network: Network, node: Node, at: int, shape: tuple[int, ...]) -> bool:
    """Resize the operand at input ``at`` of ``node`` to ``shape``."""
    name, integer, dequantize = node.inputs[at], node.inputs[at], None
    if not node.domain:
        dequantize = network.maker(name)
        parameters = parameters_of(network, dequantize, "DequantizeLinear")
        if dequantize is None or parameters is None or not parameters.per_tensor:
            return False
        integer = dequantize.inputs[0]
    if integer in network.constants or network.types[integer].dtype not in BYTE_TYPES:
        return False
    wide = network.unused_name(f"{integer}_of_image")
    network.types[wide] = replace(network.types[integer], shape=shape)
    sizes = network.add_constant(f"{wide}_sizes", np.array(shape, np.int64))
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
    attributes["nearest_mode"] = "floor"
    made = [Node("Resize", wide, (integer, "", "", sizes), (wide,), attributes)]
    inputs = list(node.inputs)
    inputs[at] = wide
    if dequantize is not None:
        inputs[at] = network.unused_name(f"{name}_of_image")
        network.types[inputs[at]] = replace(network.types[name], shape=shape)
        given = (wide, *dequantize.inputs[1:])
        made.append(replace(dequantize, name=inputs[at], inputs=given, outputs=(inputs[at],)))
    network.nodes.replace(node, [*made, replace(node, inputs=tuple(inputs))])
    return True


def _shape(network: Network, name: str) -> tuple[int, ...] | None:
    info = network.types.get(name)
    return None if info is None else info.shape
