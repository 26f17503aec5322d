"""Operators that select or join channels by constant indices."""

from __future__ import annotations

import numpy as np

from .network import Network
from .nodes import Node


def is_of_channels(rank: int, axis: int) -> bool:
    """Whether ``axis`` of a tensor of this rank has the channels of images, sequences or rows."""
    return (rank > 2 and axis % rank == 1) or (rank < 4 and axis % rank == rank - 1)


def axis_of(node: Node, network: Network) -> int | None:
    """The axis of a Concat, a Gather or a Slice; None for other operators, or a Slice of several or
    unknown axes."""
    if node.domain:
        return None
    if node.operator in ("Concat", "Gather"):
        return int(node.attributes.get("axis", 0))
    if node.operator != "Slice" or node.input(3) not in network.constants:
        return None
    axes = network.constants[node.input(3)].reshape(-1)
    return int(axes[0]) if len(axes) == 1 else None


def chosen_numbers(node: Node, network: Network) -> list[int] | None:
    """The indices of the channels that a Gather or a Slice selects; None for other operators, or if
    they select anything but channels."""
    if node.domain or node.operator not in ("Gather", "Slice"):
        return None
    constants, axis = network.constants, axis_of(node, network)
    shape = network.types[node.inputs[0]].shape
    if axis is None or shape is None or len(shape) not in (2, 3, 4):
        return None
    if not is_of_channels(len(shape), axis):
        return None
    size = shape[axis]
    if node.operator == "Gather":
        indices = constants.get(node.inputs[1])
        if indices is None or indices.ndim != 1 or not indices.size:
            return None
        if indices.min() < -size or indices.max() >= size:
            return None
        return np.arange(size)[indices].tolist()
    given = [constants.get(name) for name in (*node.inputs[1:3], node.input(4)) if name]
    if any(value is None or value.size != 1 for value in given):
        return None
    bounds = [int(value.item()) for value in given if value is not None]
    return None if bounds[2:] == [0] else list(range(size)[slice(*bounds)])
