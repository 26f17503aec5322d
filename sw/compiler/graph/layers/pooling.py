"""Poolings on the machine: MaxPool, and QLinearConv that is an average."""

from __future__ import annotations

import numpy as np

from amaranth_vta.sw.compiler.graph.layers.parts.layer import Layer, NotHere, identifier
from amaranth_vta.sw.compiler.graph.layers.parts.products import Product
from amaranth_vta.sw.compiler.graph.layers.parts.tensors import Tensors
from amaranth_vta.sw.compiler.graph.layers.parts.windows import window
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.average_pool2d import AveragePool2d, average_pool2d
from amaranth_vta.sw.compiler.operators.max_pool2d import MaxPool2d, max_pool2d
from amaranth_vta.sw.compiler.operators.parts.exact import sum_constants
from amaranth_vta.sw.compiler.operators.parts.fixed_point import NotExact
from amaranth_vta.sw.compiler.operators.parts.identity import identity_weights, reads_what_it_stores
from amaranth_vta.sw.runtime.network.packing import Window
from amaranth_vta.sw.runtime.network.tile_layout import Image, tiles
from amaranth_vta.sw.runtime.network.tiled_tensor import TiledTensor
from amaranth_vta.sw.runtime.scalars import pack


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
        sources=(TiledTensor(tensors.root(source), image, tensors.output_layout),),
        result=TiledTensor(result, out, tensors.output_layout),
        function=max_pool2d(workload, tensors.env, name=identifier(node.name)),
        constants=(
            {"identity": pack(identity_weights(tensors.env), tensors.env.wgt_dtype)}
            if reads_what_it_stores(tensors.env)
            else {}
        ),
        macs=0,
    )


def is_average(product: Product, window: Window) -> bool:
    """Whether a convolution adds up the pixels of each channel for itself."""
    weights = product.sums.weights
    return (
        product.nodes[0].attributes.get("group", 1) == len(weights)
        and weights.shape[1] == 1
        and window.dilations == (1, 1)
        and bool((weights == 1).all())
        and np.unique(product.sums.scale).size == 1
        and not product.nodes[0].input(8)
    )


def average_pool(
    product: Product, tensors: Tensors, moved: Window, image: Image, out: Image
) -> Layer:
    """A QLinearConv that `is_average`. Raises `NotHere`."""
    node, config, total = product.nodes[0], tensors.config, product.sums
    held = tensors.held(node.inputs[0], image)
    if held != image:
        raise NotHere(f"its input is held as an image of {list(held)}")
    try:
        constants = sum_constants(
            total.scale[0],
            product.zero_point,
            total.zero_point,
            moved.taps,
            config,
            total.low,
            total.high,
        )
    except NotExact as problem:
        raise NotHere(str(problem)) from None
    workload = AveragePool2d(
        batch=tiles(image[0], config.batch),
        channels=tiles(image[1], config.block_out),
        height=image[2],
        width=image[3],
        kernel=moved.kernel,
        constants=constants,
        strides=moved.strides,
        pads=moved.pads,
        pad_value=product.pad_value(moved),
    )
    result, parameters = product.nodes[-1].outputs[0], constants.parameters(tensors.env)
    tensors.set_range(result, total.low, total.high)
    return Layer(
        name=node.name,
        operator=node.operator,
        nodes=product.nodes,
        sources=(TiledTensor(tensors.root(node.inputs[0]), image, tensors.output_layout),),
        result=TiledTensor(result, out, tensors.output_layout),
        function=average_pool2d(workload, tensors.env, name=identifier(node.name)),
        constants={"factors": pack(parameters, tensors.env.acc_dtype)} if len(parameters) else {},
        macs=0,
    )
