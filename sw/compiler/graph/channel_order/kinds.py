"""Classify operators by their use of the channels of images."""

from __future__ import annotations

from enum import Enum

import numpy as np

from amaranth_vta.sw.compiler.graph.channels import axis_of, chosen_numbers
from amaranth_vta.sw.compiler.graph.integer_operators import (
    DOMAIN,
    LOOKUP,
    ROUNDING,
    multipliers_of,
)
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node

_BYTES = (np.int8, np.uint8)
_OF_ELEMENTS = frozenset({"Clip", "DequantizeLinear", "QuantizeLinear", "Relu"})
# Inputs of a QLinearConv that may have one item per output channel.
PER_CHANNEL = (4, 5, 8)


class ChannelUse(Enum):
    """A SUM computes each channel from all channels of one tensor, by constant weights; an operator
    on LANES each channel from the channel with the same index, all channels alike or by constants
    per channel; a MOVE has the channels of its operands in any order. All others need channels in
    their order in the network.
    """

    SUM = "sum"
    LANES = "lanes"
    MOVE = "move"
    OTHER = "other"


def kind_of(node: Node, network: Network) -> ChannelUse:
    """The kind of ``node``, whose operands of kinds except OTHER are all images of fixed sizes."""
    images = [name for name in node.reads if name not in network.constants]
    shapes = [network.types[name].shape for name in (*images, *node.outputs)]
    if len(node.outputs) != 1 or any(shape is None or len(shape) != 4 for shape in shapes):
        return ChannelUse.OTHER
    if network.types[node.outputs[0]].dtype in _BYTES and _moves(node, network):
        return ChannelUse.MOVE
    if images != [node.inputs[0]] or node.captured:
        return ChannelUse.OTHER
    if not node.domain and node.operator == "QLinearConv":
        return _kind_of_convolution(node, network)
    one = all(network.constants[name].size == 1 for name in node.reads[1:])
    if not node.domain and (node.operator == "MaxPool" or (node.operator in _OF_ELEMENTS and one)):
        return ChannelUse.LANES
    if (node.domain, node.operator) == (DOMAIN, LOOKUP):
        return ChannelUse.LANES if network.constants[node.inputs[1]].ndim == 1 else ChannelUse.OTHER
    return ChannelUse.OTHER


def moved_channels(node: Node, network: Network) -> list[tuple[str, int]]:
    """The channels of the result of a MOVE: a tensor and the index of its channel."""
    chosen = chosen_numbers(node, network)
    if chosen is not None:
        return [(node.inputs[0], number) for number in chosen]
    return [(name, number) for name in node.inputs for number in range(channels(name, network))]


def channels(name: str, network: Network) -> int:
    shape = network.types[name].shape
    assert shape is not None
    return shape[1]


def _moves(node: Node, network: Network) -> bool:
    axis = axis_of(node, network)
    if node.operator == "Concat" and axis is not None:
        return axis % 4 == 1 and all(name not in network.constants for name in node.inputs)
    return chosen_numbers(node, network) is not None


def _kind_of_convolution(node: Node, network: Network) -> ChannelUse:
    weights, count = network.constants[node.inputs[3]], channels(node.outputs[0], network)
    groups = int(node.attributes.get("group", 1))
    known = [network.constants[node.input(at)] for at in PER_CHANNEL if node.input(at)]
    if ROUNDING in node.attributes and "multipliers" in node.attributes:
        known += map(np.asarray, multipliers_of(node))
    if weights.ndim != 4 or any(value.size not in (1, count) for value in known):
        return ChannelUse.OTHER
    if groups == 1:
        return ChannelUse.SUM
    each = weights.shape[1] == 1 and groups == count == channels(node.inputs[0], network)
    return ChannelUse.LANES if each else ChannelUse.OTHER
