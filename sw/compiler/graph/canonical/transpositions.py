"""Rules of the canonical form for Transpose, which networks with channels last are full of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node

from .quantization import parameters_of
from .simpler_forms import reduced_axes

_REDUCTIONS = frozenset({"ReduceMax", "ReduceMean", "ReduceSum"})


def merge_transposes(network: Network, node: Node) -> bool:
    """Two Transpose in succession become one."""
    after = _order(network, node)
    maker = network.maker(node.inputs[0]) if after else None
    before = _order(network, maker)
    if after is None or maker is None or before is None:
        return False
    perm = [before[axis] for axis in after]
    merged = replace(node, inputs=maker.inputs, attributes={"perm": perm})
    network.nodes.replace(node, [merged])
    return True


def reduce_before_transpose(network: Network, node: Node) -> bool:
    """Transpose → DequantizeLinear → ReduceMean | ReduceSum | ReduceMax goes over the axes that
    these were before, where that leaves the others in order."""
    if node.domain or node.operator not in _REDUCTIONS:
        return False
    dequantize = network.maker(node.inputs[0])
    parameters = parameters_of(network, dequantize, "DequantizeLinear")
    if dequantize is None or parameters is None or not parameters.per_tensor:
        return False
    transpose = network.maker(dequantize.inputs[0])
    order, axes = _order(network, transpose), reduced_axes(network, node)
    shape = network.types[node.outputs[0]].shape
    if transpose is None or order is None or shape is None or not axes:
        return False
    kept = [order[axis] for axis in range(len(order)) if axis not in axes]
    if kept != sorted(kept):
        return False
    name, given = node.name, network.types[transpose.inputs[0]]
    assert given.shape is not None
    source, reduced = (network.unused_name(f"{name}_{what}") for what in ("before", "reduced"))
    network.types[source] = replace(network.types[node.inputs[0]], shape=given.shape)
    sizes = tuple(given.shape[axis] for axis in kept)
    network.types[reduced] = replace(network.types[node.outputs[0]], shape=sizes)
    moved = [order[axis] for axis in axes]
    attributes = {k: v for k, v in node.attributes.items() if k not in ("axes", "keepdims")}
    inputs: tuple[str, ...] = (source,)
    if node.input(1):
        inputs = (source, network.add_constant(f"{name}_axes", np.array(moved, np.int64)))
    else:
        attributes["axes"] = moved
    ready = (transpose.inputs[0], *dequantize.inputs[1:])
    final = network.add_constant(f"{name}_shape", np.array(shape, np.int64))
    network.nodes.replace(
        node,
        [
            replace(dequantize, name=source, inputs=ready, outputs=(source,)),
            replace(node, inputs=inputs, outputs=(reduced,), attributes=attributes | _FLAT),
            Node("Reshape", f"{name}_shaped", (reduced, final), node.outputs),
        ],
    )
    return True


_FLAT = {"keepdims": 0}


def _order(network: Network, node: Node | None) -> list[int] | None:
    """The axes of the input, in the order of the result; None if ``node`` is no Transpose."""
    if node is None or node.domain or node.operator != "Transpose":
        return None
    shape = network.types[node.inputs[0]].shape
    reverse = None if shape is None else list(range(len(shape)))[::-1]
    order = node.attributes.get("perm", reverse)
    return None if order is None else list(order)
