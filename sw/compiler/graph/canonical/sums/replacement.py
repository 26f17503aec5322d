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

    def add(self, operator: str, what: str, dtype: Any, *inputs: str, **attributes: Any) -> str:
        """Add a node whose result has the shape of the replaced node's; returns the result's
        name."""
        info = replace(self.network.types[self._node.outputs[0]], dtype=np.dtype(dtype))
        (result,) = self.add_all(operator, what, inputs, [info], **attributes)
        return result

    def add_all(
        self,
        operator: str,
        what: str,
        inputs: Iterable[str],
        types: Iterable[TensorType],
        **attributes: Any,
    ) -> list[str]:
        """Add a node with results of these ``types``; returns their names."""
        name, results = f"{self._node.name}_{what}", []
        for info in types:
            results.append(self.network.unused_name(name))
            self.network.types[results[-1]] = info
        self._nodes.append(Node(operator, name, tuple(inputs), tuple(results), attributes))
        return results

    def constant(self, what: str, value: Any) -> str:
        """Add a constant, its name prefixed by the replaced node's; returns the name."""
        return self.network.add_constant(f"{self._node.name}_{what}", value)

    def put(self, product: str) -> None:
        """Replace the node in the network. The node of operator ``product`` takes over its name."""
        *before, last = (
            replace(node, name=self._node.name) if node.operator == product else node
            for node in self._nodes
        )
        last = replace(last, outputs=self._node.outputs)
        self.network.nodes.replace(self._node, [*before, last])
