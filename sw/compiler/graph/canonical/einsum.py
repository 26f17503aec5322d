"""Canonicalization rule that rewrites Einsum of two tensors as a matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .quantization import parameters_of

_ELLIPSIS = "..."


def matmul_of_einsum(network: Network, node: Node) -> bool:
    """Rewrite Einsum of two dequantized tensors as MatMul between Transpose and Reshape.

    Every label must occur in at least two of: first operand, second operand, result.
    """
    if node.domain or node.operator != "Einsum" or len(node.inputs) != 2:
        return False
    makers = [network.maker(name) for name in node.inputs]
    if any(parameters_of(network, maker, "DequantizeLinear") is None for maker in makers):
        return False
    shapes = [network.types[name].shape for name in node.inputs]
    product = _product(node.attributes["equation"], shapes)
    if product is None:
        return False
    # The machine needs the constant factor second.
    constant = [maker is not None and maker.inputs[0] in network.constants for maker in makers]
    first, second = (1, 0) if constant == [True, False] else (0, 1)
    network.nodes.replace(node, _nodes(network, node, replace(product, first=first, second=second)))
    return True


@dataclass(frozen=True)
class _Product:
    """Labels of both operands and of the result, and the size of each label. ``first`` and
    ``second`` are the Einsum operands that become the factors of the MatMul."""

    operands: tuple[str, str]
    result: str
    sizes: dict[str, int]
    first: int = 0
    second: int = 1

    @property
    def stack(self) -> str:
        return "".join(c for c in self.result if all(c in labels for labels in self.operands))

    @property
    def summed(self) -> str:
        return "".join(c for c in self.operands[0] if c not in self.result)

    def own(self, operand: int) -> str:
        """Labels shared by one operand and the result, but not by the other operand."""
        given = self.operands[operand]
        return "".join(c for c in self.result if c in given and c not in self.stack)

    def shape(self, labels: str) -> tuple[int, ...]:
        return tuple(self.sizes[label] for label in labels)

    def count(self, labels: str) -> int:
        return prod(self.shape(labels))


def _product(equation: str, shapes: Sequence[tuple[int, ...] | None]) -> _Product | None:
    """Parse ``equation``; None if it is not a matrix product."""
    terms, arrow, result = equation.replace(" ", "").partition("->")
    operands = terms.split(",")
    if len(operands) != 2 or None in shapes:
        return None
    ranks = [len(shape or ()) for shape in shapes]
    more = [
        rank - len(labels.replace(_ELLIPSIS, "")) if _ELLIPSIS in labels else 0
        for labels, rank in zip(operands, ranks, strict=True)
    ]
    # One label per axis of an ellipsis, aligned at the last axis as in broadcasting.
    every = "".join(map(chr, range(ord("0"), ord("0") + max(more))))
    if not arrow:
        letters = terms.replace(_ELLIPSIS, "").replace(",", "")
        result = _ELLIPSIS * bool(every) + "".join(
            sorted(c for c in set(letters) if letters.count(c) == 1)
        )
    result = result.replace(_ELLIPSIS, every)
    sizes: dict[str, int] = {}
    written = []
    for labels, count, shape in zip(operands, more, shapes, strict=True):
        labels = labels.replace(_ELLIPSIS, every[len(every) - count :])
        if len(set(labels)) < len(labels) or len(labels) != len(shape or ()):
            return None
        for label, size in zip(labels, shape or (), strict=True):
            if sizes.setdefault(label, size) != size:
                return None
        written.append(labels)
    a, b = map(set, written)
    if len(set(result)) < len(result) or (a ^ b) != set(result) - (a & b):
        return None
    return _Product((written[0], written[1]), result, sizes)


def _nodes(network: Network, node: Node, p: _Product) -> list[Node]:
    stack, summed = p.stack, p.summed
    rows, columns = p.own(p.first), p.own(p.second)
    # If the second factor is a single matrix, the rows need no Reshape.
    height = p.shape(rows) if not stack and rows else (p.count(rows),)
    before: list[Node] = []
    tall = (*p.shape(stack), *height, p.count(summed))
    wide = (*p.shape(stack), p.count(summed), p.count(columns))
    factors = [
        _moved(network, node, p, operand, labels, shape, before)
        for operand, labels, shape in (
            (p.first, stack + rows + summed, tall),
            (p.second, stack + summed + columns, wide),
        )
    ]
    dtype, result = network.types[node.outputs[0]].dtype, node.outputs[0]
    made = stack + rows + columns
    flat = (*tall[:-1], p.count(columns))
    steps: list[Node] = []
    names = [network.unused_name(f"{result}_{what}") for what in ("matrices", "axes")]
    for name, shape in zip(names, (flat, p.shape(made)), strict=True):
        network.types[name] = TensorType(dtype, shape)
    size = network.add_constant(f"{node.name}_sizes", np.array(p.shape(made), np.int64))
    order = [made.index(label) for label in p.result]
    steps = [
        Node("MatMul", node.name, (factors[0], factors[1]), (names[0],)),
        Node("Reshape", f"{node.name}_axes", (names[0], size), (names[1],)),
        Node("Transpose", f"{node.name}_order", (names[1],), (result,), {"perm": order}),
    ]
    return [*before, *steps]


def _moved(
    network: Network,
    node: Node,
    p: _Product,
    operand: int,
    labels: str,
    shape: tuple[int, ...],
    before: list[Node],
) -> str:
    """Transpose an operand to the order ``labels``, reshape it to ``shape``, and return its name.

    Appends the nodes to ``before``; a constant is transposed at compile time.
    """
    name = node.inputs[operand]
    order = [p.operands[operand].index(label) for label in labels]
    maker = network.maker(name)
    parameters = parameters_of(network, maker, "DequantizeLinear")
    values = None if maker is None else network.constants.get(maker.inputs[0])
    info, turned, made = (
        network.types[name],
        *(network.unused_name(f"{node.name}_{operand}_{what}") for what in ("turned", "matrix")),
    )
    network.types[made] = replace(info, shape=shape)
    if maker is not None and values is not None and parameters is not None:
        axis = len(shape) - 1
        alone = len(p.own(operand)) == 1 and labels[-1:] == p.own(operand)
        if parameters.per_tensor or (alone and order[-1] == parameters.axis % values.ndim):
            moved = values.transpose(order).reshape(shape)
            constant = network.add_constant(f"{node.name}_{operand}_constant", moved)
            attributes = {} if parameters.per_tensor else {"axis": axis}
            before.append(
                replace(
                    maker,
                    name=made,
                    inputs=(constant, *maker.inputs[1:]),
                    outputs=(made,),
                    attributes=attributes,
                )
            )
            return made
    network.types[turned] = replace(info, shape=p.shape(labels))
    size = network.add_constant(f"{made}_sizes", np.array(shape, np.int64))
    before += [
        Node("Transpose", turned, (name,), (turned,), {"perm": order}),
        Node("Reshape", made, (turned, size), (made,)),
    ]
    return made
