"""Rewrite transposed convolutions as one QLinearConv for all phases of the output; see `phases`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.graph.phases import (
    PIXELS_OF_PHASES,
    Axes,
    PhaseAxis,
    interleaving_shapes,
    phase_kernels,
    phase_pads,
)
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .integer_products import Anchor, anchor_of, like_data, limits_of
from .matrix_forms import reshape
from .quantization import BYTE_TYPES, QuantizationParameters, clipped, integer_limits, parameters_of
from .sum_steps import sum_steps


def phases_of_depth(network: Network, node: Node) -> bool:
    """Rewrite DepthToSpace after QLinearConv → [Clip] as interleaved phases, as in a transposed
    convolution. In mode CRD, the channels of the QLinearConv are permuted."""
    if node.domain or node.operator != "DepthToSpace":
        return False
    conv = network.maker(node.inputs[0])
    if conv is not None and conv.operator == "Clip" and not conv.domain:
        conv = network.maker(conv.inputs[0])
    info, out = (network.types[name] for name in (node.inputs[0], node.outputs[0]))
    if conv is None or conv.operator != "QLinearConv" or info.shape is None or out.shape is None:
        return False
    size, attributes = node.attributes["blocksize"], conv.attributes
    plain = attributes.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    steps = (*attributes.get("strides", ()), *attributes.get("dilations", ()))
    if not plain or attributes.get("group", 1) != 1 or any(step != 1 for step in steps):
        return False
    if len(info.shape) != 4 or info.shape[1] % size**2:
        return False
    if network.only_reader(conv.outputs[0]) is None or network.only_reader(node.inputs[0]) is None:
        return False
    if node.attributes.get("mode", "DCR") == "CRD" and not _phases_first(network, conv, size**2):
        return False
    strides, ends = (size, size), out.shape[2:]
    made = _interleaved(
        network, node.name, *(node.inputs[0], node.outputs[0]), strides, (0, 0), ends
    )
    network.nodes.replace(node, made)
    return True


def _phases_first(network: Network, conv: Node, phases: int) -> bool:
    """Permute the results of ``conv``, ``phases`` per channel, to phase-major order. Returns False
    if its parameters are not constant."""
    inputs = list(conv.inputs)
    for at in (3, 4, 5, 8):
        value = network.constants.get(conv.input(at))
        if value is None and conv.input(at):
            return False
        if value is not None and value.size > 1:
            turned = value.reshape(-1, phases, *value.shape[1:]).swapaxes(0, 1)
            inputs[at] = network.add_constant(f"{inputs[at]}_turned", turned.reshape(value.shape))
    network.nodes.replace(conv, [replace(conv, inputs=tuple(inputs))])
    return True


def fuse_transposed(network: Network, node: Node) -> bool:
    """Rewrite DequantizeLinear → ConvTranspose → [Relu | Clip] → QuantizeLinear as QLinearConv,
    then Clip, then Reshape and Transpose that interleave the phases."""
    anchor = anchor_of(network, node, ("ConvTranspose",))
    made = None if anchor is None else _integer_nodes(network, anchor)
    if anchor is None or made is None:
        return False
    network.nodes.replace(anchor.quantize, made)
    for absorbed in anchor.absorbed:
        network.nodes.remove(absorbed)
    return True


def _integer_nodes(network: Network, anchor: Anchor) -> list[Node] | None:
    data = parameters_of(network, anchor.data, "DequantizeLinear")
    weight = parameters_of(network, anchor.weight, "DequantizeLinear")
    out = parameters_of(network, anchor.quantize, "QuantizeLinear")
    values = network.constants.get(anchor.weight.inputs[0])
    if data is None or weight is None or out is None or values is None:
        return None
    if values.ndim not in (3, 4):
        return None
    known = data.zero.dtype in BYTE_TYPES and weight.zero.dtype in BYTE_TYPES
    if not known or out.zero.dtype != data.zero.dtype or not (data.per_tensor and out.per_tensor):
        return None
    if not (weight.per_tensor or weight.axis % values.ndim == 1):
        return None
    if values.ndim == 3:
        values = values[:, :, None, :]
    axes = _axes(network, anchor.node, values.shape[2:])
    groups = anchor.node.attributes.get("group", 1)
    if axes is None:
        return None
    outputs = values.shape[1] * groups
    whole = weight
    if not weight.per_tensor:
        scale, zero = (np.tile(item.reshape(-1), groups) for item in (weight.scale, weight.zero))
        whole = QuantizationParameters(scale, zero, 0)
    kernel = _phases(_zero_free(values, weight, anchor.node), groups, axes)
    # All phases of a channel share its bias.
    phases = np.swapaxes(kernel.reshape(-1, outputs, *kernel.shape[1:]), 0, 1)
    low, high = integer_limits(network, anchor.clamps, out)
    limits = limits_of(network, anchor, out)
    steps = sum_steps(network, anchor.bias, phases, data, whole, limits)
    if steps is None or not network.rounding.takes(anchor.node.name, steps.moved):
        return None
    kernel = np.swapaxes(steps.weights, 0, 1).reshape(kernel.shape)
    made = _nodes(network, anchor, (data, steps.parameters, out), kernel, steps.bias, axes)
    return clipped(network, made, out, low, high)


def _axes(network: Network, node: Node, kernel: tuple[int, ...]) -> Axes | None:
    """Both axes of images; a sequence counts as images of one row. None if shapes are unknown or
    the padding is negative."""
    given, made = (network.types[name].shape for name in (node.inputs[0], node.outputs[0]))
    if given is None or made is None:
        return None
    rank = len(given) - 2
    attributes = node.attributes
    strides, dilations, more = (
        attributes.get(name, [default] * rank)
        for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    pads = attributes.get("pads", [0] * 2 * rank)
    automatic = attributes.get("auto_pad", "NOTSET")
    axes = []
    for axis in range(rank):
        size = (kernel[axis - rank] - 1) * dilations[axis] + 1
        before = pads[axis]
        if automatic == "VALID":
            before = 0
        elif automatic != "NOTSET" or "output_shape" in attributes:
            whole = (given[2 + axis] - 1) * strides[axis] + size + more[axis]
            cropped = whole - made[2 + axis]
            before = cropped // 2 if automatic == "SAME_UPPER" else cropped - cropped // 2
        if before < 0:
            return None
        axes.append(PhaseAxis(given[2 + axis], size, strides[axis], before, made[2 + axis]))
    rows = axes[0] if rank == 2 else PhaseAxis(1, 1, 1, 0, 1)
    return rows, axes[-1]


def _zero_free(values: Array, weight: QuantizationParameters, node: Node) -> Array:
    """int16 weights (inputs, outputs / groups, …) less their zero points, dilated with zeros."""
    zero = weight.zero.astype(np.int16)
    centred = values.astype(np.int16) - (zero.reshape(1, -1, 1, 1) if zero.size > 1 else zero)
    down, right = (1, *node.attributes.get("dilations", (1, 1)))[-2:]
    height, width = values.shape[2:]
    wide = np.zeros((*values.shape[:2], (height - 1) * down + 1, (width - 1) * right + 1), np.int16)
    wide[:, :, ::down, ::right] = centred
    return wide


def _phases(weights: Array, groups: int, axes: Axes) -> Array:
    """Weights (phases · outputs, inputs, taps, taps), 0 between different groups, with the taps
    reversed for a convolution."""
    inputs, each = weights.shape[:2]
    dense = np.zeros((each * groups, inputs, *weights.shape[2:]), np.int16)
    for group in range(groups):
        part = slice(group * inputs // groups, (group + 1) * inputs // groups)
        at = slice(group * each, (group + 1) * each)
        dense[at, part] = weights[part].transpose(1, 0, 2, 3)
    return phase_kernels(dense, axes, 0)


def _nodes(
    network: Network,
    anchor: Anchor,
    parameters: tuple[QuantizationParameters, QuantizationParameters, QuantizationParameters],
    kernel: Array,
    bias: Array,
    axes: Axes,
) -> list[Node]:
    (data, weight, out), (rows, columns) = parameters, axes
    name, result = anchor.node.name, anchor.quantize.outputs[0]
    count, outputs, dtype = rows.stride * columns.stride, len(bias), out.zero.dtype
    scale, zero = weight.scale, weight.zero
    if not weight.per_tensor:
        scale, zero = np.tile(scale, count), np.tile(zero, count)
    of_channels = zero.astype(np.int16).reshape(-1, 1, 1, 1) if zero.size > 1 else zero.item()
    stored, zero = like_data((kernel + of_channels).astype(zero.dtype), zero, data.zero.dtype)
    constants: dict[str, Any] = {
        "x_zero_point": data.zero.reshape(()),
        "weight": stored,
        "weight_scale": scale.reshape(()) if scale.size == 1 else scale,
        "weight_zero_point": zero.reshape(()) if zero.size == 1 else zero,
        "y_zero_point": out.zero.reshape(()),
        "bias": np.tile(bias, count),
    }
    added = {what: network.add_constant(f"{name}_{what}", v) for what, v in constants.items()}
    inputs = (
        *anchor.data.inputs[:2],
        *(added[what] for what in list(constants)[:4]),
        anchor.quantize.inputs[1],
        *(added[what] for what in list(constants)[4:]),
    )
    source, cropped = inputs[0], result
    around: list[Node] = []
    if len(network.types[anchor.node.inputs[0]].shape or ()) == 3:
        source, cropped, around = _as_images(network, inputs[0], result)
    images = (network.types[anchor.node.inputs[0]].shape or (1,))[0]
    sums = network.unused_name(f"{name}_sums")
    shape = (images, count * outputs, rows.steps, columns.steps)
    network.types[sums] = TensorType(dtype, shape)
    return [
        *around[:1],
        Node("QLinearConv", name, (source, *inputs[1:]), (sums,), {"pads": phase_pads(axes)}),
        *_pixels(network, name, sums, cropped, axes),
        *around[1:],
    ]


def _pixels(network: Network, name: str, sums: str, result: str, axes: Axes) -> list[Node]:
    """Interleave the phases in the channels of ``sums`` to the pixels of ``result``, cropped."""
    begins = [axis.before for axis in axes]
    ends = [axis.before + axis.results for axis in axes]
    rows, columns = axes
    return _interleaved(network, name, sums, result, (rows.stride, columns.stride), begins, ends)


def _interleaved(
    network: Network,
    name: str,
    sums: str,
    result: str,
    strides: tuple[int, int],
    begins: Sequence[int],
    ends: Sequence[int],
) -> list[Node]:
    """Interleave the phases in the channels of ``sums`` to pixels, and slice ``result`` from
    ``begins`` to ``ends``."""
    info, (down, right) = network.types[sums], strides
    images, channels, height, width = info.shape or ()
    outputs = channels // (down * right)
    shapes = interleaving_shapes(images, outputs, strides, (height, width))
    tensors = [network.unused_name(f"{name}_{what}") for what in ("parts", "turned", "all")]
    for tensor, shape in zip(tensors, shapes, strict=True):
        network.types[tensor] = replace(info, shape=shape)
    parts, turned, everything = tensors
    bounds = (np.array(item, np.int64) for item in (begins, ends, (2, 3)))
    cut = tuple(network.add_constant(f"{name}_bounds", item) for item in bounds)
    return [
        reshape(network, sums, parts, shapes[0]),
        Node("Transpose", turned, (parts,), (turned,), {"perm": PIXELS_OF_PHASES}),
        reshape(network, turned, everything, shapes[2]),
        Node("Slice", f"{name}_results", (everything, *cut), (result,)),
    ]


def _as_images(network: Network, source: str, result: str) -> tuple[str, str, list[Node]]:
    """Treat the sequences ``source`` and ``result`` as images of one row: returns the images'
    names, and the Reshape before and after the images."""
    names = []
    for name in (source, result):
        names.append(network.unused_name(f"{name}_image"))
        images, channels, pixels = network.types[name].shape or ()
        shape = (images, channels, 1, pixels)
        network.types[names[-1]] = replace(network.types[name], shape=shape)
    image, cropped = names
    return (
        image,
        cropped,
        [
            reshape(network, source, image, network.types[image].shape or ()),
            reshape(network, cropped, result, network.types[result].shape or ()),
        ],
    )
