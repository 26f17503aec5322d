"""Operators that move integers on the machine: Pad, Slice, and Resize to whole pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.crop2d import Crop2d, crop2d
from amaranth_vta.sw.compiler.operators.pad2d import Pad2d, pad2d
from amaranth_vta.sw.compiler.operators.upsample2d import Upsample2d, upsample2d
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from amaranth_vta.sw.runtime.network.tile_layout import Image, offset, tiles

from .parts.layer import Layer, Unsupported
from .parts.tensors import Tensors
from .selecting import chooses_channels, chosen_channels, is_of_chosen


def padding(node: Node, tensors: Tensors) -> Layer:
    """A Pad of the rows and columns of images with a constant. Raises `Unsupported`."""
    tensors.require_bytes(node.inputs[0], node.outputs[0])
    n, c, h, w = image = _image(tensors, node.inputs[0])
    if node.attributes.get("mode", "constant") != "constant" or node.input(3):
        raise Unsupported("it does not pad all axes with a constant")
    pads = tensors.constant(node, 1).tolist()
    if any(pads[axis] for axis in (0, 1, 4, 5)) or min(pads) < 0:
        raise Unsupported("it pads other axes than rows and columns, or crops")
    value = int(tensors.constant(node, 2).item()) if node.input(2) else 0
    value -= offset(tensors.network.types[node.inputs[0]].dtype)
    tensors.require_padding(value, f"the value {value}")
    top, left, bottom, right = pads[2], pads[3], pads[6], pads[7]
    config = tensors.config
    workload = Pad2d(
        tiles(n, config.batch),
        tiles(c, config.block_out),
        h,
        w,
        (top, left, bottom, right),
        value,
    )
    function = tensors.function(pad2d, workload, node)
    low, high = tensors.range(node.inputs[0])
    out = n, c, top + h + bottom, left + w + right
    limits = min(low, value), max(high, value)
    sources = [tensors.source(node.inputs[0], image)]
    return tensors.layer((node,), sources, out, function, {}, limits)


def cropping(node: Node, tensors: Tensors) -> Layer:
    """A Slice of the result of a layer: rows, columns, and channels that begin with a tile, or
    channels alone. Raises `Unsupported`."""
    source, result = node.inputs[0], node.outputs[0]
    tensors.require_made(source)
    tensors.require_bytes(source, result)
    image, out, config = _image(tensors, source), tensors.image(result), tensors.config
    starts, ends = (tensors.constant(node, index).tolist() for index in (1, 2))
    axes = tensors.constant(node, 3).tolist() if node.input(3) else range(len(starts))
    steps = tensors.constant(node, 4).tolist() if node.input(4) else [1] * len(starts)
    of_channels = chooses_channels(node, tensors)
    if of_channels and (is_of_chosen(node, tensors) or steps != [1]):
        return chosen_channels(node, tensors)
    first = [0, 0, 0, 0]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step != 1:
            raise Unsupported("it slices with a step other than 1")
        first[axis] = range(image[axis])[start:end].start
    _, channel, row, column = first
    if out[0] != image[0]:
        raise Unsupported("it slices the batch")
    if channel % config.block_out:
        if of_channels:
            return chosen_channels(node, tensors)
        raise Unsupported(
            f"it slices pixels, and begins within a tile of {config.block_out} channels"
        )
    workload = Crop2d(
        tiles(image[0], config.batch),
        tiles(image[1], config.block_out),
        *image[2:],
        first=(channel // config.block_out, row, column),
        size=(tiles(out[1], config.block_out), *out[2:]),
    )
    function = tensors.function(crop2d, workload, node)
    sources = [tensors.source(source, image)]
    return tensors.layer((node,), sources, out, function, {}, tensors.range(source))


def upsampling(node: Node, tensors: Tensors) -> Layer:
    """A Resize that repeats each pixel equally often. Raises `Unsupported`."""
    if node.attributes.get("mode", "nearest") != "nearest":
        raise Unsupported("it interpolates between pixels")
    tensors.require_bytes(node.inputs[0], node.outputs[0])
    image, out = _image(tensors, node.inputs[0]), tensors.image(node.outputs[0])
    down, across = (after // before for after, before in zip(out[2:], image[2:], strict=True))
    n, c, h, w = image
    if out != (n, c, h * down, w * across):
        raise Unsupported("it does not repeat pixels")
    if not np.array_equal(_taken(node, tensors), _repeated(h, w, down, across)):
        raise Unsupported("it does not take each pixel equally often")
    config = tensors.config
    workload = Upsample2d(tiles(n, config.batch), tiles(c, config.block_out), h, w, (down, across))
    function = tensors.function(upsample2d, workload, node)
    limits = tensors.range(node.inputs[0])
    sources = [tensors.source(node.inputs[0], image)]
    return tensors.layer((node,), sources, out, function, {}, limits)


def _taken(node: Node, tensors: Tensors) -> Any:
    """For each pixel of the result of a Resize, the number of the input pixel that ONNX Runtime
    takes: float32 (height, width)."""
    network, (_, _, h, w) = tensors.network, tensors.image(node.inputs[0])
    shape, out = network.types[node.inputs[0]].shape, network.types[node.outputs[0]].shape
    part = network.part([node], [], [])
    graph = part.graph
    for name, size in ((node.inputs[0], shape), (node.outputs[0], out)):
        where = graph.input if name == node.inputs[0] else graph.output
        where.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, size))
    numbers = np.arange(h * w, dtype=np.float32).reshape(1, 1, h, w)
    assert shape is not None
    feeds = {node.inputs[0]: np.ascontiguousarray(np.broadcast_to(numbers, shape))}
    result = node.outputs[0]
    return run_session(exact_session(part.SerializeToString()), [result], feeds)[result][0, 0]


def _repeated(h: int, w: int, down: int, across: int) -> Any:
    return np.arange(h * w).reshape(h, w).repeat(down, axis=0).repeat(across, axis=1)


def _image(tensors: Tensors, name: str) -> Image:
    image = tensors.image(name)
    tensors.require_held(name, image)
    return image
