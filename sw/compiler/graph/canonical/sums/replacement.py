"""Build the nodes that replace a single node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.runtime.network.tensor_type import TensorType


class Replacement:
    """The nodes, in order, that replace ``node``; the last one produces its result."""

    def __init__(self, network: Network, node: Node) -> None:
        self.network = network
        self._node = node
        self._nodes: list[Node] = []

    @property
    def type(self) -> TensorType:
        """The type of the replaced node's first result."""
        return self.network.types[self._node.outputs[0]]

    def add(self, operator: str, what: str, dtype: Any, *inputs: str, **attributes: Any) -> str:
        """Add a node whose result has the shape of the replaced node's; returns the result's
        name."""
        info = replace(self.type, dtype=np.dtype(dtype))
        (result,) = self.add_all(operator, what, inputs, [info], **attributes)
        return result

    def add_all(
        self,
        operator: str,
        what: str,
        inputs: Iterable[str],
        types: Iterable[TensorType],
        domain: str = "",
        **attributes: Any,
    ) -> list[str]:
        """Add a node with results of these ``types``; returns their names."""
        name, results = f"{self._node.name}_{what}", []
        for info in types:
            results.append(self.network.unused_name(name))
            self.network.types[results[-1]] = info
        self._nodes.append(Node(operator, name, tuple(inputs), tuple(results), attributes, domain))
        return results

    def constant(self, what: str, value: Any) -> str:
        """Add a constant, its name prefixed by the replaced node's; returns the name."""
        return self.network.add_constant(f"{self._node.name}_{what}", value)

    def put(self, product: str, *results: str) -> None:
        """Replace the node in the network. The node of operator ``product`` takes over its name.

        ``results`` are the tensors that take the names of the replaced node's outputs; the result
        of the last node if there are none.
        """
        outputs = self._node.outputs
        names = dict(zip(results or self._nodes[-1].outputs, outputs, strict=False))
        self.network.nodes.replace(
            self._node,
            [
                replace(
                    node,
                    name=self._node.name if node.operator == product else node.name,
                    inputs=tuple(names.get(name, name) for name in node.inputs),
                    outputs=tuple(names.get(name, name) for name in node.outputs),
                )
                for node in self._nodes
            ],
        )
