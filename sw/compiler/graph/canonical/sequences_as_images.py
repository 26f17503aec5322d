"""Canonicalization rule that rewrites operators with one spatial dimension for one-row images.

The arithmetic is the same, and every layer for images then handles sequences too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.graph.second_factor import SECOND_FACTOR

from .quantization import BYTE_TYPES

_WINDOWS = frozenset({"AveragePool", "GlobalAveragePool", "MaxPool", "Pad"})
# The value of each per-dimension attribute along the added row.
_ROW = {"kernel_shape": 1, "strides": 1, "dilations": 1}
_CONVOLUTIONS = frozenset({"ConvInteger", "QLinearConv"})


def with_rows(network: Network, node: Node) -> bool:
    """Run a convolution of integers, a pooling or Pad of (N, C, L), and the Clip after it, on (N,
    C, 1, L) between two Reshape."""
    if node.domain or node.operator not in _WINDOWS | _CONVOLUTIONS or len(node.outputs) != 1:
        return False
    source, last = node.inputs[0], node
    clip = network.only_reader(node.outputs[0])
    if clip is not None and clip.operator == "Clip" and not clip.domain:
        last = clip
    result = last.outputs[0]
    given, made = network.types[source], network.types[result]
    if given.shape is None or made.shape is None or len(given.shape) != 3:
        return False
    inputs = list(node.inputs)
    if node.operator in _CONVOLUTIONS:
        at, _ = SECOND_FACTOR[node.domain, node.operator]
        weight = network.constants.get(inputs[at])
        if weight is None:
            return False
        wide = weight[:, :, None, :]
        inputs[at] = network.add_constant(f"{inputs[at]}_image", wide)
    if node.operator == "Pad":
        pads = network.constants.get(inputs[1])
        if pads is None or node.input(3) or given.dtype not in BYTE_TYPES:
            return False
        wide = np.insert(pads, [2, 5], 0)  # the row axis follows N and C, in begins and ends
        inputs[1] = network.add_constant(f"{inputs[1]}_image", wide)
    image, pooled = (network.unused_name(f"{name}_image") for name in (source, result))
    inner = network.unused_name(f"{node.outputs[0]}_unclipped") if last is clip else pooled
    network.types[image] = replace(given, shape=(*given.shape[:2], 1, given.shape[2]))
    network.types[pooled] = replace(made, shape=(*made.shape[:2], 1, made.shape[2]))
    sizes = [
        network.add_constant(f"{name}_shape", np.array(shape, np.int64))
        for name, shape in ((image, network.types[image].shape), (result, made.shape))
    ]
    inputs[0] = image
    attributes = {name: _of_images(name, value) for name, value in node.attributes.items()}
    wide_nodes = [replace(node, inputs=tuple(inputs), outputs=(inner,), attributes=attributes)]
    if last is clip:
        network.types[inner] = network.types[pooled]
        wide_nodes.append(replace(clip, inputs=(inner, *clip.inputs[1:]), outputs=(pooled,)))
        network.nodes.remove(clip)
    network.nodes.replace(
        node,
        [
            Node("Reshape", f"{node.name}_image", (source, sizes[0]), (image,)),
            *wide_nodes,
            Node("Reshape", f"{node.name}_sequence", (pooled, sizes[1]), (result,)),
        ],
    )
    return True


def _of_images(name: str, value: Any) -> Any:
    if name == "pads":
        return [0, value[0], 0, value[1]]
    return [_ROW[name], *value] if name in _ROW else value
