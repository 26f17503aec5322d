"""Cosines and sines of rotary position embeddings as integers: `IntegerWaves`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.graph.nodes import Node, Nodes
from amaranth_vta.sw.compiler.operators.rotation import GREATEST
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

# Operators that only move elements of their first operand.
MOVERS = frozenset({"Flatten", "Gather", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})


def movers_of(network: Network, name: str) -> Iterator[Node]:
    """Yield the operators that only move the elements of a tensor, last first."""
    while (node := network.maker(name)) is not None and _moves(node):
        yield node
        name = node.inputs[0]


def _moves(node: Node) -> bool:
    return not node.domain and node.operator in MOVERS


class IntegerWaves:
    """Converts float tensors of ``network`` to int32 of at most `GREATEST` in magnitude, constants
    at once and others by operators, which `finish` adds to the network.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._nodes: list[Node] = []
        self._names: dict[tuple[str, float], str] = {}

    def greatest(self, name: str) -> float | None:
        """A bound of the magnitude of a tensor; None if there is none."""
        network = self._network
        for mover in movers_of(network, name):
            name = mover.inputs[0]
        value, node = network.constants.get(name), network.maker(name)
        if value is not None:
            return float(np.abs(value).max())
        if node is None or node.domain:
            return None
        match node.operator:
            case "Cos" | "Sin":
                return 1.0
            case "Cast" | "Identity":
                return self.greatest(node.inputs[0])
            case "Concat" | "Mul":
                found = [self.greatest(item) for item in node.inputs]
                known = [item for item in found if item is not None]
                if len(known) == len(found):
                    return max(known) if node.operator == "Concat" else float(np.prod(known))
        return None

    def unit(self, greatest: float) -> float:
        """The integer of 1 in tensors of up to ``greatest``, which becomes `GREATEST`."""
        return GREATEST / max(greatest, 2.0**-20)

    def integers(self, name: str, unit: float) -> str:
        """The tensor ``name`` in integers, of which ``unit`` is 1."""
        key = name, unit
        if key not in self._names:
            self._names[key] = self._made(name, unit)
        return self._names[key]

    def _made(self, name: str, unit: float) -> str:
        network = self._network
        value, node = network.constants.get(name), network.maker(name)
        if value is not None:
            steps = np.clip(np.rint(value.astype(np.float64) * unit), -GREATEST, GREATEST)
            return network.add_constant(f"{name}/integers", steps.astype(np.int32))
        if node is not None and _moves(node):
            inputs = (self.integers(node.inputs[0], unit), *node.inputs[1:])
            result = self._unused(name, "integers", network.types[name].shape)
            moved = replace(node, name=result, inputs=inputs, outputs=(result,))
            self._nodes.append(moved)
            return result
        scaled = self._added("Mul", name, "scaled", np.array(unit, np.float32))
        rounded = self._added("Round", scaled, "rounded")
        whole = self._added("Cast", rounded, "whole", to=TensorProto.INT32)
        bounds = [np.array(bound, np.int32) for bound in (-GREATEST, GREATEST)]
        return self._added("Clip", whole, "integers", *bounds)

    def _added(self, operator: str, x: str, what: str, *constants: Array, **given: int) -> str:
        network = self._network
        result = self._unused(x, what, network.types[x].shape)
        if operator in ("Mul", "Round"):
            network.types[result] = network.types[x]
        names = (network.add_constant(f"{result}/{operator}", value) for value in constants)
        self._nodes.append(Node(operator, result, (x, *names), (result,), given))
        return result

    def _unused(self, name: str, what: str, shape: tuple[int, ...] | None) -> str:
        result = self._network.unused_name(f"{name}/{what}")
        self._network.types[result] = TensorType(np.dtype(np.int32), shape)
        return result

    def finish(self) -> None:
        network = self._network
        network.nodes = Nodes([*network.nodes, *self._nodes])
        network.sort()
