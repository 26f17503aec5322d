"""Finds rotary position embeddings in a network: `rotations`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowRotation:
    """``nodes`` that compute x · ``cosines`` + x' · ``sines`` for rows of ``x``, the last one the
    sum. Element i of a row of x' is element ``places[i]`` of the row of x times ``signs[i]``.
    """

    nodes: tuple[Node, ...]
    x: str
    cosines: str
    sines: str
    places: Integers
    signs: Integers


def rotations(network: Network) -> Iterator[RowRotation]:
    """Yield rotations composed of products and a sum over the last axis, where Split, Slice or
    Gather, Neg and Concat compute x'.
    """
    for node in network.nodes:
        if not node.domain and node.operator == "Add":
            found = _composed(network, node)
            if found is not None:
                yield found


def _composed(network: Network, total: Node) -> RowRotation | None:
    shape = network.types[total.outputs[0]].shape
    terms = [network.maker(name) for name in total.inputs]
    if not shape or None in terms:
        return None
    for first, second in (terms, terms[::-1]):
        if first is None or second is None or {first.operator, second.operator} != {"Mul"}:
            continue
        for (x, cosines), (turned, sines) in product(
            (first.inputs, first.inputs[::-1]), (second.inputs, second.inputs[::-1])
        ):
            order = _Order(network, x, shape[-1])
            numbers = order.of(turned)
            same = all(network.types[name].shape == shape for name in (x, turned))
            if numbers is None or turned == x or len(numbers) != shape[-1] or not same:
                continue
            nodes = (*order.nodes, first, second, total)
            places, signs = abs(numbers) - 1, np.sign(numbers)
            return RowRotation(nodes, x, cosines, sines, places, signs)
    return None


class _Order:
    """Traces elements of rows back to elements of ``x``, which has rows of ``width``. ``nodes``
    are the operators in between.
    """

    def __init__(self, network: Network, x: str, width: int) -> None:
        self._network, self._x = network, x
        self._whole = np.arange(1, width + 1)
        self.nodes: list[Node] = []

    def of(self, name: str) -> Integers | None:
        """For each element of a row of the tensor ``name`` the number of an element of x, from 1
        up, negative if it is negated; None if it has others.
        """
        if name == self._x:
            return self._whole
        node = self._network.maker(name)
        if node is None or node.domain or node.operator not in ("Concat", *_CHOSEN, "Neg"):
            return None
        made: Integers | None
        if node.operator == "Concat":
            parts = [self.of(item) for item in node.inputs]
            known = [part for part in parts if part is not None]
            is_last = self._is_last(node.attributes["axis"], name)
            made = np.concatenate(known) if is_last and len(known) == len(parts) else None
        else:
            given = self.of(node.inputs[0])
            made = None
            if given is not None:
                made = -given if node.operator == "Neg" else self._chosen(node, name, given)
        if made is not None and node not in self.nodes:
            self.nodes.append(node)
        return made

    def _is_last(self, axis: int, name: str) -> bool:
        rank = len(self._network.types[name].shape or ())
        return rank > 0 and axis % rank == rank - 1

    def _chosen(self, node: Node, name: str, given: Integers) -> Integers | None:
        """The elements of ``given`` that a Split, Slice or Gather of the last axis chooses."""
        network = self._network
        constants = [network.constants.get(item) for item in node.inputs[1:] if item]
        if node.operator != "Split" and any(value is None for value in constants):
            return None
        known = [value for value in constants if value is not None]
        axis = node.attributes.get("axis", 0)
        if node.operator == "Slice":
            axes = network.constants.get(node.input(3))
            if axes is None or axes.size != 1:
                return None
            axis = int(axes.item())
        if not self._is_last(axis, name):
            return None
        match node.operator:
            case "Split":
                widths = [(network.types[item].shape or (0,))[-1] for item in node.outputs]
                at = node.outputs.index(name)
                return given[sum(widths[:at]) :][: widths[at]]
            case "Slice":
                begin, end, _, *steps = (int(value.item()) for value in known)
                return given[begin : end : steps[0] if steps else 1]
            case _:
                indices = known[0]
                return given[indices] if indices.ndim == 1 else None


# Operators that choose elements.
_CHOSEN = ("Gather", "Slice", "Split")
