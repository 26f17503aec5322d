"""Layers that stay in float because an If chooses by the open number of images."""

from __future__ import annotations

import onnx

from amaranth_vta.sw.compiler.graph.load.input_shapes import dimension_name, inputs_of, is_open
from amaranth_vta.sw.compiler.graph.nodes import subgraphs

from .float_parts import PRODUCTS

# Operators whose results do not depend on the elements of their operand.
_SIZES = frozenset({"Shape", "Size"})


def open_branches(model: onnx.ModelProto) -> str:
    """A warning about products inside If whose condition is constant once the number of images is
    fixed, with the option that fixes it; empty if there are none.
    """
    images = [
        dimension_name(dims[0])
        for item in inputs_of(model)
        if (dims := item.type.tensor_type.shape.dim) and is_open(dims[0])
    ]
    found = [
        node.name or node.output[0]
        for node in model.graph.node
        if node.op_type == "If" and _has_product(node) and _is_of_shapes(model, node.input[0])
    ]
    if not images or not found:
        return ""
    names = dict.fromkeys(name for name in images if name)
    fixed = " ".join(f"--dim {name}=1" for name in names)
    fixed = fixed or "a model with a fixed first dimension of its inputs"
    return (
        f"layers inside {', '.join(found)} (If) stay in float, since the condition depends on the "
        f"number of images, which is open; {fixed} quantizes them"
    )


def _has_product(node: onnx.NodeProto) -> bool:
    return any(
        inner.op_type in PRODUCTS or _has_product(inner)
        for graph in subgraphs(node)
        for inner in graph.node
    )


def _is_of_shapes(model: onnx.ModelProto, condition: str) -> bool:
    """Whether a tensor depends on shapes and constants only."""
    makers = {name: node for node in model.graph.node for name in node.output}
    given = {item.name for item in inputs_of(model)}
    waiting, seen = [condition], set()
    while waiting:
        name = waiting.pop()
        if name in given:
            return False
        node = makers.get(name)
        if node is None or name in seen or node.op_type in _SIZES:
            continue
        if any(True for _ in subgraphs(node)):
            return False
        seen.add(name)
        waiting += node.input
    return True
