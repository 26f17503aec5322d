"""Quantizes functions of one tensor as one operator each: `collapsed` and `expanded`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import prod

import onnx
from onnx import helper

from amaranth_vta.sw.compiler.graph.nodes import renamed_node

from .preprocessing import replace_nodes

# Operators of which functions of one tensor are composed.
_OF_NUMBERS = frozenset(
    {
        *("Abs", "Add", "Div", "Elu", "Erf", "Exp", "HardSigmoid", "HardSwish", "LeakyRelu", "Log"),
        *("Max", "Min", "Mul", "Neg", "Pow", "Reciprocal", "Sigmoid", "Softplus", "Sqrt", "Sub"),
        "Tanh",
    }
)
# The quantizer quantizes its operand and its result, as of any operator of one tensor.
_STAND_IN = "Sigmoid"


@dataclass(frozen=True)
class ComposedFunction:
    """``nodes`` that compute ``y`` from ``x`` and constants of one element, the last one ``y``."""

    x: str
    y: str
    nodes: tuple[onnx.NodeProto, ...]


def composed_functions(
    graph: onnx.GraphProto, in_float: Collection[str], quantized: Collection[str]
) -> Iterator[ComposedFunction]:
    """Yield functions of several operators, such as the five of a GELU, with one result that other
    operators read, if an operator of the types ``quantized`` is among them, and none ``in_float``.
    """
    numbers = {item.name for item in graph.initializer if prod(item.dims) == 1}
    constants = {item.name for item in graph.initializer}
    outputs = {item.name for item in graph.output}
    operands: dict[str, str] = {}  # the tensor on which each result of a function depends
    groups: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        reads = {operands.get(name, name) for name in node.input if name not in numbers}
        valid = node.op_type in _OF_NUMBERS and not node.domain and node.name not in in_float
        if valid and len(reads) == 1 and not reads & (constants | {""}):
            (x,) = reads
            operands[node.output[0]] = x
            groups.setdefault(x, []).append(node)
    readers: dict[str, set[str]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, set()).add(node.name)
    for x, nodes in groups.items():
        names = {node.name for node in nodes}
        results = [(node, node.output[0]) for node in nodes]
        ends = [
            node
            for node, name in results
            if name in outputs or not readers.get(name, set()) <= names
        ]
        if len(nodes) > 1 and ends == nodes[-1:] and any(n.op_type in quantized for n in nodes):
            yield ComposedFunction(x, nodes[-1].output[0], tuple(nodes))


def collapsed(model: onnx.ModelProto, functions: Collection[ComposedFunction]) -> onnx.ModelProto:
    """Return ``model`` with one operator in place of each function."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    ends = {function.nodes[-1].name: function for function in functions}
    names = {node.name for function in functions for node in function.nodes}
    nodes = []
    for node in model.graph.node:
        if node.name in ends:
            function = ends[node.name]
            nodes.append(helper.make_node(_STAND_IN, [function.x], [function.y], node.name))
        elif node.name not in names:
            nodes.append(node)
    replace_nodes(made.graph, nodes)
    return made


def expanded(
    quantized: onnx.ModelProto, given: onnx.ModelProto, functions: Collection[ComposedFunction]
) -> None:
    """Put the functions of ``given`` back into the model that was made of the `collapsed` one. Only
    their operands and results are quantized.
    """
    graph = quantized.graph
    ends = {function.nodes[-1].name: function for function in functions}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        function = ends.get(node.name)
        if function is None:
            nodes.append(node)
            continue
        renamed = {function.x: node.input[0], function.y: node.output[0]}
        nodes += [renamed_node(part, renamed) for part in function.nodes]
    replace_nodes(graph, nodes)
    known = {item.name for item in graph.initializer}
    read = {name for item in functions for node in item.nodes for name in node.input}
    graph.initializer.extend(
        item for item in given.graph.initializer if item.name in read and item.name not in known
    )
