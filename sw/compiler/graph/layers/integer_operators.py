"""Lower LookupPair, a table of the results of two operands, of `integer_operators`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import Quantized
from amaranth_vta.sw.runtime.network.tile_layout import offset

from .addition import addition_layer
from .multiplication import multiplication_layer
from .support.layer import Layer, Unsupported
from .support.tensors import Tensors
from .unary_functions import of_one_source


def lookup_pair(node: Node, tensors: Tensors) -> Layer:
    """Lower a LookupPair that adds, subtracts or multiplies, and a following Clip. Raises
    `Unsupported`."""
    limits, clips = tensors.clip_after(node.outputs[0])
    names = (node.inputs[0], node.inputs[1])
    if whole := of_one_source((node,), tensors):
        return whole
    tensors.require_bytes(*names, node.outputs[0])
    table = tensors.constant(node, 2)
    wanted = np.clip(table.astype(np.int64) - offset(table.dtype), *limits)
    a, b, y = (
        Quantized(scale, zero - offset(tensors.network.types[name].dtype))
        for scale, zero, name in zip(
            node.attributes["scales"],
            node.attributes["zero_points"],
            (*names, node.outputs[0]),
            strict=True,
        )
    )
    match node.attributes["function"]:
        case "ADD":
            return addition_layer((node, *clips), names, (a, b, y), wanted, tensors)
        case "SUB":
            b = replace(b, scale=-b.scale)
            return addition_layer((node, *clips), names, (a, b, y), wanted, tensors)
        case "MUL":
            return multiplication_layer((node, *clips), names, (a, b, y), wanted, tensors)
    raise Unsupported("it neither adds nor multiplies two tensors")
