"""Lower tables of 256 results per operand: Lookup and LookupPair of `integer_operators`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import Quantized
from amaranth_vta.sw.runtime.network.tile_layout import offset

from .addition import addition_layer
from .multiplication import multiplication_layer
from .support.layer import Layer, Unsupported
from .support.one_tensor import OneTensor
from .support.tensors import Tensors
from .unary_functions import function_layer, of_one_source


def lookup(node: Node, tensors: Tensors) -> Layer:
    """Lower a Lookup. Raises `Unsupported`."""
    return function_layer(OneTensor(node.inputs[0], node.outputs[0], (node,)), tensors)


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


def softmax(node: Node, tensors: Tensors) -> Layer:
    """Raise `Unsupported`: divisions are the host's."""
    raise Unsupported("the machine has no division")


def resize_bilinear(node: Node, tensors: Tensors) -> Layer:
    """Raise `Unsupported`: weights differ from pixel to pixel."""
    raise Unsupported("its weights differ from pixel to pixel")


def requantization(node: Node, tensors: Tensors) -> Layer:
    """Raise `Unsupported`: these are the channels that REQUANTIZE cannot scale."""
    raise Unsupported("REQUANTIZE has no parameters for its scale")


def float_quantization(node: Node, tensors: Tensors) -> Layer:
    """Raise `Unsupported`: floats are the host's."""
    raise Unsupported("float tensors are the host's")
