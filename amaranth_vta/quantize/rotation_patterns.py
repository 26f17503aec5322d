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
    """Yield rotations composed of products and a sum over the last axis, where Split, Slice,
    Gather, Neg, Concat, Reshape, Squeeze and Unsqueeze compute x'.
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
            if turned == x or any(network.types[name].shape != shape for name in (x, turned)):
                continue
            order = RowOrder(network, {x: np.arange(1, shape[-1] + 1)}, shape[:-1])
            numbers = order.of(turned)
            if numbers is None:
                continue
            nodes = (*order.nodes, first, second, total)
            places, signs = abs(numbers) - 1, np.sign(numbers)
            return RowRotation(nodes, x, cosines, sines, places, signs)
    return None


class RowOrder:
    """Traces elements of rows back to numbered elements of other tensors. ``numbers`` has the
    numbers of the elements of a row of these, ``rows`` the dimensions before a row's own.
    ``nodes`` are the operators in between.
    """

    def __init__(
        self, network: Network, numbers: dict[str, Integers], rows: tuple[int, ...]
    ) -> None:
        self._network, self._numbers, self._rows = network, numbers, rows
        self.nodes: list[Node] = []

    def of(self, name: str) -> Integers | None:
        """The numbers of the elements of a row of the tensor ``name``, negative where they are
        negated; None if it has others.
        """
        if name in self._numbers:
            return self._numbers[name]
        node, shape = self._network.maker(name), self._network.types[name].shape
        if node is None or node.domain or not shape or shape[: len(self._rows)] != self._rows:
            return None
        made: Integers | None = None
        if node.operator == "Concat":
            parts = [self.of(item) for item in node.inputs]
            known = [part for part in parts if part is not None]
            axis = self._axis(node.attributes["axis"], len(shape))
            if axis >= 0 and len(known) == len(parts):
                made = np.concatenate(known, axis)
        elif node.operator in (*CHOOSERS, *RESHAPERS, "Neg"):
            given = self.of(node.inputs[0])
            if given is None:
                return None
            if node.operator == "Neg":
                made = -given
            elif node.operator in RESHAPERS:
                made = given.reshape(shape[len(self._rows) :])
            else:
                made = self._chosen(node, name, given)
        if made is not None and node not in self.nodes:
            self.nodes.append(node)
        return made

    def _axis(self, axis: int, rank: int) -> int:
        """The axis of a row; negative if it is one of the dimensions before."""
        return axis % rank - len(self._rows)

    def _chosen(self, node: Node, name: str, given: Integers) -> Integers | None:
        """The elements of ``given`` that a Split, Slice or Gather chooses."""
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
        axis = self._axis(axis, len(self._rows) + given.ndim)
        if axis < 0:
            return None
        match node.operator:
            case "Split":
                shapes = [network.types[item].shape or (0,) for item in node.outputs]
                widths = [shape[len(self._rows) + axis] for shape in shapes]
                at = node.outputs.index(name)
                return np.take(given, np.arange(widths[at]) + sum(widths[:at]), axis)
            case "Slice":
                begin, end, _, *steps = (int(value.item()) for value in known)
                chosen = slice(begin, end, steps[0] if steps else 1)
                return given[(slice(None),) * axis + (chosen,)]
            case _:
                return np.take(given, known[0], axis)


# Operators that choose elements, and operators that change the shape alone.
CHOOSERS = ("Gather", "Slice", "Split")
RESHAPERS = ("Reshape", "Squeeze", "Unsqueeze")
