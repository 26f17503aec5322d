"""QLinearConv and QLinearMatMul on the machine: convolutions and matrix products."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.graph.layer import Bytes, Layer, NotHere, Operand, identifier
from amaranth_vta.sw.compiler.graph.layout import Image, pack_weights, tiles
from amaranth_vta.sw.compiler.graph.network import ModelError, Node
from amaranth_vta.sw.compiler.graph.packing import best_packing
from amaranth_vta.sw.compiler.graph.sums import Sums, requantization, sums
from amaranth_vta.sw.compiler.graph.tensors import Tensors
from amaranth_vta.sw.compiler.graph.window import Window, window
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d, conv2d
from amaranth_vta.sw.compiler.operators.dense import Dense, dense


def convolution(node: Node, tensors: Tensors) -> Layer:
    """A QLinearConv, with a Clip that follows. Raises `NotHere`."""
    tensors.require_bytes(node.inputs[0], node.outputs[0])
    image, out = tensors.image(node.inputs[0]), tensors.image(node.outputs[0])
    if node.attributes.get("group", 1) != 1:
        raise NotHere("its channels are in groups")
    product = sums(tensors, node)
    if product.weights.shape[1] != image[1]:
        raise ModelError(
            f"{node.name}: its weights are for {product.weights.shape[1]} channels, its input "
            f"{node.inputs[0]} has {image[1]}"
        )
    moved = window(node, image, out, product.weights.shape[2:])
    if (moved.kernel, moved.pads, image[2:]) == ((1, 1), (0, 0, 0, 0), (1, 1)):
        return _product(node, tensors, product, image, out)
    return _convolution(node, tensors, product, moved, out)


def matrix_product(node: Node, tensors: Tensors) -> Layer:
    """A QLinearMatMul with constant weights, with a Clip that follows. Raises `NotHere`."""
    tensors.require_bytes(node.inputs[0], node.outputs[0])
    image, out = tensors.rows(node.inputs[0]), tensors.rows(node.outputs[0])
    return _product(node, tensors, sums(tensors, node), image, out)


def _convolution(node: Node, tensors: Tensors, product: Sums, moved: Window, out: Image) -> Layer:
    config, image = tensors.config, tensors.image(node.inputs[0])
    limits, clip = tensors.clip_after(node.outputs[0])
    if moved.size(image[2:]) != out[2:]:
        raise NotHere("its windows end outside of the padding")
    held = tensors.held(node.inputs[0], image)
    if held != image:
        raise NotHere(f"its input is held as an image of {list(held)}")
    source = Operand(tensors.root(node.inputs[0]), image, tensors.input_layout)
    packing, left = None, moved
    value = tensors.zero_point(node, 2)
    if source.tensor not in tensors.results:
        packing, left = best_packing(moved, value, image, out[1], source.layout, config)
    if any(left.pads) and value and not config.pad_value:
        raise NotHere("it pads with its zero point, and the machine with zeros")
    packed = packing.image(image) if packing else image
    product = product.clipped(limits)
    requantize, parameters = requantization(product, config)
    workload = Conv2d(
        batch=tiles(image[0], config.batch),
        inputs=tiles(packed[1], config.block_in),
        outputs=tiles(out[1], config.block_out),
        height=packed[2],
        width=packed[3],
        kernel=left.kernel,
        requantize=requantize,
        strides=left.strides,
        dilations=left.dilations,
        pads=left.pads,
        pad_value=value if any(left.pads) else 0,
    )
    function = conv2d(workload, tensors.env, name=identifier(node.name))
    weights = packing.weights(product.weights) if packing else product.weights
    constants = {"weights": pack_weights(weights, config), "requantization": parameters}
    source = replace(source, packing=packing)
    return _layer((node, *clip), tensors, source, out, function, product, constants)


def _product(node: Node, tensors: Tensors, product: Sums, image: Image, out: Image) -> Layer:
    config = tensors.config
    limits, clip = tensors.clip_after(node.outputs[0])
    held = tensors.held(node.inputs[0], image)
    if (held[0], prod(held[1:])) != image[:2]:
        raise NotHere(f"its input is held as an image of {list(held)}")
    product = product.clipped(limits)
    requantize, parameters = requantization(product, config)
    workload = Dense(
        rows=tiles(held[0], config.batch),
        # Features in the order in which the image that they were is held.
        inputs=tiles(held[1], config.block_in) * held[2] * held[3],
        outputs=tiles(out[1], config.block_out),
        requantize=requantize,
    )
    function = dense(workload, tensors.env, name=identifier(node.name))
    weights = product.weights.reshape(len(product.weights), *held[1:])
    constants = {"weights": pack_weights(weights, config), "requantization": parameters}
    source = Operand(tensors.root(node.inputs[0]), held, tensors.input_layout)
    return _layer((node, *clip), tensors, source, out, function, product, constants)


def _layer(
    nodes: tuple[Node, ...],
    tensors: Tensors,
    source: Operand,
    out: Image,
    function: Function,
    product: Sums,
    constants: dict[str, Bytes],
) -> Layer:
    node, result = nodes[0], nodes[-1].outputs[0]
    tensors.set_range(result, product.low, product.high)
    return Layer(
        name=node.name,
        operator=node.operator,
        nodes=nodes,
        sources=(source,),
        result=Operand(result, out, tensors.output_layout),
        function=function,
        constants=constants,
        macs=prod(out) * prod(product.weights.shape[1:]),
    )
