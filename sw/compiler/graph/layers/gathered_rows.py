"""Rows of constant tables at a place that the host computes, such as the cosines of a position.

The machine keeps the table. A layer copies the row, by a LOAD whose address the host changes before
each run, so that the host moves no data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.permute import Permute, permute
from amaranth_vta.sw.runtime.memory import Motion
from amaranth_vta.sw.runtime.network.tiled_tensor import TiledTensor

from .support.layer import HostNode, Layer, RowTable, WindowSlices, forms_read
from .support.tensors import Tensors

# Larger tables, such as the embeddings of a vocabulary, remain in the host's memory only.
_MOST_BYTES = 1 << 20


def gathered_rows(items: Sequence[Layer | HostNode], tensors: Tensors) -> list[Layer | HostNode]:
    """``items`` with layers in place of each Gather of one row of a constant table that only layers
    read, all in the same form. Programs without other changing addresses remain constant, which
    exported C and read-only memory need."""
    if not any(isinstance(item, Layer) and item.in_windows for item in items):
        return list(items)
    forms = forms_read(items)
    return [_gathered_row(item, forms, tensors) for item in items]


def _gathered_row(
    item: Layer | HostNode, forms: Mapping[str, TiledTensor], tensors: Tensors
) -> Layer | HostNode:
    if isinstance(item, Layer) or not _takes_row(item.node, tensors):
        return item
    node, tile = item.node, tensors.config.out.element_bytes
    (result,) = node.outputs
    row = forms.get(result)
    if row is None or result in tensors.network.outputs:
        return item
    table = tensors.network.types[node.inputs[0]].shape
    assert table is not None
    count, elements = table[0], prod(table[1:])
    is_row = row.packing is None and row.layout.batch == 1 and row.image == (1, elements, 1, 1)
    if not is_row or row.nbytes % tile or count * row.nbytes > _MOST_BYTES:
        return item
    held = RowTable(replace(row, tensor=node.inputs[0], image=(count, elements, 1, 1)))
    place = tensors.root(node.inputs[1])
    slices = WindowSlices(held, (0,), row.nbytes, Motion(1, row.nbytes, 0), place)
    copy = tensors.function(permute, Permute((row.nbytes // tile,), (0,)), node)
    given = replace(row, tensor=node.inputs[0])
    return Layer(node.name, "Gather", (node,), (given,), row, copy, {}, 0, in_windows={0: slices})


def _takes_row(node: Node, tensors: Tensors) -> bool:
    """Whether a node gathers a single row of a constant at a place that is not constant."""
    network = tensors.network
    if (node.domain, node.operator) != ("", "Gather") or node.attributes.get("axis", 0):
        return False
    table, place = node.inputs
    shape = network.types[place].shape
    is_one = shape is not None and prod(shape) == 1
    return table in network.constants and place not in network.constants and is_one
