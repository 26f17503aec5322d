"""Recognize the integer graphs that `vta quantize --integer-only` writes.

A graph that equals the expansion of an operator of `integer_operators`, up to the names of tensors
and the contents of tables, becomes this operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from amaranth_vta.sw.compiler.graph.integer_operators import (
    DOMAIN,
    NORMALIZATION_OPERANDS,
    REPLACED,
    ROW_ROTATION,
    ROW_SOFTMAX,
    SYMMETRIC,
    expanded,
)
from amaranth_vta.sw.compiler.graph.integer_rows import ROTATION_OPERANDS
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node, Nodes
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .quantization import BYTE_TYPES

_RESULT = "y"
# Operands that need not be constant.
_COMPUTED = frozenset({"mask", "cosines", "sines"})


class _Template:
    """The expansion of ``node``, whose inputs match any tensors; x and result have these types."""

    def __init__(self, node: Node, x: TensorType, result: TensorType) -> None:
        self.node, self.x = node, x
        nodes, self._constants = expanded([node], {node.inputs[0]: x, _RESULT: result})
        self._nodes = Nodes(nodes)
        self.end = nodes[-1]

    def inputs(self, network: Network, end: Node) -> tuple[str, ...] | None:
        """The tensors that match the inputs, if ``end`` computes the same; None otherwise."""
        found: dict[str, str] = {}
        if not self._equal(network, _RESULT, end.outputs[0], found):
            return None
        return tuple(found[name] for name in self.node.inputs)

    def _equal(self, network: Network, own: str, other: str, found: dict[str, str]) -> bool:
        if own in found:
            return found[own] == other
        made, maker = self._nodes.maker(own), network.maker(other)
        if own in self._constants:
            value, wanted = network.constants.get(other), self._constants[own]
            if value is None or value.dtype != wanted.dtype or not np.array_equal(value, wanted):
                return False
        elif made is not None and (
            maker is None
            or (maker.operator, maker.domain) != (made.operator, made.domain)
            or len(maker.inputs) != len(made.inputs)
            or dict(maker.attributes) != dict(made.attributes)
            or not all(
                self._equal(network, *pair, found)
                for pair in zip(made.inputs, maker.inputs, strict=True)
            )
        ):
            return False
        found[own] = other
        return True


@cache
def _templates(elements: int, result: np.dtype) -> tuple[_Template, ...]:
    """The templates for rows of ``elements`` and a ``result`` of this dtype."""
    forms: list[tuple[str, tuple[str, ...], dict[str, int]]] = [
        (name, ("x", *others), {}) for name, others in NORMALIZATION_OPERANDS.items()
    ]
    forms.append((ROW_ROTATION, ("x", *ROTATION_OPERANDS), {}))
    forms += [
        (ROW_SOFTMAX, ("x", "table", *mask), {SYMMETRIC: symmetric})
        for mask in ((), ("mask",))
        for symmetric in (0, 1)
    ]
    return tuple(
        _Template(
            Node(operator, "template", inputs, (_RESULT,), attributes, DOMAIN),
            TensorType(np.dtype(dtype), (1, elements)),
            TensorType(result, (1, elements)),
        )
        for operator, inputs, attributes in forms
        for dtype in BYTE_TYPES
    )


def recognize_integer_graphs(network: Network) -> None:
    """Replace each integer graph by one operator."""
    for node in list(network.nodes):
        if node not in network.nodes or node.operator != "Cast" or node.domain:
            continue
        info = network.types[node.outputs[0]]
        if info.dtype not in BYTE_TYPES or not info.shape:
            continue
        for template in _templates(info.shape[-1], info.dtype):
            inputs = template.inputs(network, node)
            if inputs is not None and _is_of(network, template, inputs):
                name = node.name.split(REPLACED)[0]
                whole = replace(template.node, name=name, inputs=inputs, outputs=node.outputs)
                network.nodes.replace(node, [whole])
                network.opsets[DOMAIN] = 1
                break
    if DOMAIN in network.opsets:
        network.drop_unused()


def _is_of(network: Network, template: _Template, inputs: Sequence[str]) -> bool:
    """Whether the tensor that matches x has its type, and constants match the other inputs that
    are not `_COMPUTED`.
    """
    x, *others = zip(inputs, template.node.inputs, strict=True)
    return network.types[x[0]].dtype == template.x.dtype and all(
        name in network.constants or own in _COMPUTED for name, own in others
    )
