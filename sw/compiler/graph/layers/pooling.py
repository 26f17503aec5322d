"""MaxPool on the machine."""

from __future__ import annotations

from amaranth_vta.sw.compiler.graph.layer import Layer, NotHere, Operand, identifier
from amaranth_vta.sw.compiler.graph.layout import tiles
from amaranth_vta.sw.compiler.graph.network import Node
from amaranth_vta.sw.compiler.graph.tensors import Tensors
from amaranth_vta.sw.compiler.graph.window import window
from amaranth_vta.sw.compiler.operators.max_pool2d import MaxPool2d, max_pool2d


def max_pool(node: Node, tensors: Tensors) -> Layer:
    """A MaxPool of 8-bit integers. Raises `NotHere`."""
    source, result = node.inputs[0], node.outputs[0]
    tensors.require_bytes(source, result)
    image, out = tensors.image(source), tensors.image(result)
    if len([name for name in node.outputs if name]) != 1:
        raise NotHere("the machine does not find the places of maxima")
    moved = window(node, image, out, ())
    if moved.dilations != (1, 1):
        raise NotHere("its window has gaps")
    low, high = tensors.range(source)
    config = tensors.config
    negative = any(moved.pads) and low < 0
    if negative and not config.pad_value:
        raise NotHere("the machine pads with zeros, and what it holds may be negative")
    if (held := tensors.held(source, image)) != image:
        raise NotHere(f"its input is held as an image of {list(held)}")
    workload = MaxPool2d(
        batch=tiles(image[0], config.batch),
        channels=tiles(image[1], config.block_out),
        height=image[2],
        width=image[3],
        kernel=moved.kernel,
        strides=moved.strides,
        pads=moved.pads,
        pad_value=-128 if negative else 0,
    )
    if (workload.output_height, workload.output_width) != out[2:]:
        raise NotHere("its windows end outside of the padding")
    tensors.set_range(result, low, high)
    return Layer(
        name=node.name,
        operator=node.operator,
        nodes=(node,),
        sources=(Operand(tensors.root(source), image, tensors.output_layout),),
        result=Operand(result, out, tensors.output_layout),
        function=max_pool2d(workload, tensors.env, name=identifier(node.name)),
        constants={},
        macs=0,
    )
