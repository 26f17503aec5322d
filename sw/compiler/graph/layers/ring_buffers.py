"""Ring buffers in the machine's memory, to which the host writes new rows as weights.

Products read a ring buffer (`canonical/ring_states.py`) as weights, so the rows of a run are
written to their places in weight tiles, and the rest stays where it is. Without zero points no
other constant of the product depends on the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from amaranth_vta.sw.compiler.graph.index_maps import in_same_order
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.runtime.network.factors import FactorWeights
from amaranth_vta.sw.runtime.network.tiled_tensor import TiledTensor

from .support.layer import HostNode, Layer, RingWrite


def ring_written(network: Network, name: str) -> Node | None:
    """The ScatterElements that writes the next value ``name`` of a ring buffer; None if the tensor
    is none."""
    maker = network.maker(name)
    if maker is None or maker.domain or maker.operator != "ScatterElements":
        return None
    is_state = any((maker.inputs[0], name) == (s.source, s.result) for s in network.states)
    expand = network.maker(maker.inputs[1])
    return maker if is_state and expand is not None and expand.operator == "Expand" else None


def ring_writes(network: Network, items: Sequence[Layer | HostNode]) -> list[Layer | HostNode]:
    """``items`` with `RingWrite` in place of the operators that write ring buffers, as far as only
    layers read these, all in the same form."""
    readers: dict[str, list[TiledTensor | None]] = {}
    for item in items:
        if isinstance(item, Layer):
            for source in item.sources:
                readers.setdefault(source.tensor, []).append(source)
        else:
            for name in item.node.reads:
                readers.setdefault(name, []).append(None)
    return [
        _ring_write(network, item, readers) if isinstance(item, HostNode) else item
        for item in items
    ]


def _ring_write(
    network: Network, item: HostNode, readers: dict[str, list[TiledTensor | None]]
) -> HostNode:
    result = item.node.outputs[0]
    node = ring_written(network, result)
    held, *others = readers.get(result, [None])
    if node is None or held is None or any(other != held for other in others):
        return item
    plain = isinstance(held.packing, FactorWeights) and held.packing.terms == 1
    if not plain or held.layout.dtype != "int8":
        return item
    source, _, rows = node.inputs
    expand = network.maker(node.inputs[1])
    reshape = network.maker(expand.inputs[0]) if expand else None
    if reshape is None:
        return item
    # The last two dimensions of a ring buffer are inputs and outputs of the product.
    dimensions = len(network.types[source].shape or ())
    axis = node.attributes["axis"] - (dimensions - 2) + 1
    # The host writes rows by the order of their elements; their shape does not matter. The first
    # tensor in this order is a result: no layer absorbs following operators that only change the
    # shape.
    first = in_same_order(network, rows)[-1]
    written = replace(node, inputs=(first, reshape.inputs[0]))
    reason = "the host writes new rows to the weights of a product"
    return RingWrite(written, reason, source, held, axis)
