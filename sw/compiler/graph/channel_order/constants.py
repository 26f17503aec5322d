"""Permute the constants of convolutions along with the channels of their operands and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from amaranth_vta.sw.compiler.graph.integer_operators import MULTIPLIER_ATTRIBUTES
from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.graph.nodes import Node

from .kinds import PER_CHANNEL

_WEIGHTS, _WEIGHT_ZERO, _BIAS = 3, 5, 8


def with_inputs(network: Network, node: Node, channels: Sequence[int]) -> Node:
    """Return the convolution ``node`` for an input whose channels are the given channels of the
    present input. The weights of channels -1 are zero.
    """
    weights, zero = _constant(network, node, _WEIGHTS), _constant(network, node, _WEIGHT_ZERO)
    padding = np.broadcast_to(zero.reshape(-1, 1, 1, 1), (len(weights), 1, *weights.shape[2:]))
    padded = np.concatenate([weights, padding.astype(weights.dtype)], axis=1)
    return _replaced(network, node, {_WEIGHTS: padded[:, list(channels)]})


def with_outputs(network: Network, node: Node, channels: Sequence[int], per_channel: bool) -> Node:
    """Return the convolution ``node`` with the given channels of its result in this order; -1 is
    any channel. A depthwise convolution is ``per_channel``.
    """
    # Padding repeats a channel: constants that are alike for all channels stay alike.
    chosen = np.maximum(channels, 0)
    new = {_WEIGHTS: _constant(network, node, _WEIGHTS)[chosen]}
    for at in PER_CHANNEL:
        if node.input(at) and ((value := _constant(network, node, at)).size > 1 or at == _BIAS):
            new[at] = value.reshape(-1)[chosen]
    made = _replaced(network, node, new)
    attributes: dict[str, Any] = dict(node.attributes)
    for name in MULTIPLIER_ATTRIBUTES:
        if np.size(attributes.get(name, 0)) > 1:
            attributes[name] = np.array(attributes[name])[chosen].tolist()
    if per_channel:
        attributes["group"] = len(chosen)
    return replace(made, attributes=attributes)


def _constant(network: Network, node: Node, at: int) -> Array:
    return network.constants[node.inputs[at]]


def _replaced(network: Network, node: Node, new: dict[int, Array]) -> Node:
    """``node`` with other constants as the inputs at these positions."""
    inputs = list(node.inputs)
    for at, value in new.items():
        inputs[at] = network.add_constant(
            f"{node.inputs[at]} in tiles", np.ascontiguousarray(value)
        )
    return replace(node, inputs=tuple(inputs))
