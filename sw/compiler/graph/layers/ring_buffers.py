"""Ring buffers in the machine's memory, to which a run writes its new rows as weights.

Products read a ring buffer (`canonical/ring_states.py`) as weights, so the rows of a run are
written to their places in weight tiles, and the rest stays where it is. Without zero points no
other constant of the product depends on the rows.

The layer that produces a single new row stores it there itself: a key is a row of weight tiles. A
value is a column of weight tiles, so it is stored to a copy of all values, in the layout of keys,
of which another layer transposes the tiles with the new row. Other rows are written by the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from amaranth_vta.sw.compiler.graph.index_maps import in_same_order, is_mover
from amaranth_vta.sw.compiler.graph.integer_operators import DOMAIN, ROW_SOFTMAX
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.runtime.memory import Motion
from amaranth_vta.sw.runtime.network.factors import FactorWeights
from amaranth_vta.sw.runtime.network.tile_layout import tiles
from amaranth_vta.sw.runtime.network.tiled_tensor import TiledTensor

from .stored_factors import holds_factors, transposing_tiles
from .support.layer import RESULT, HostNode, Layer, Ring, RingWrite, WindowSlices, forms_read
from .support.tensors import Tensors

_CONVERSIONS = frozenset({"DequantizeLinear", "QuantizeLinear"})


def ring_written(network: Network, name: str) -> Node | None:
    """The ScatterElements that writes the next value ``name`` of a ring buffer; None if the tensor
    is none."""
    maker = network.maker(name)
    if maker is None or maker.domain or maker.operator != "ScatterElements":
        return None
    is_state = any((maker.inputs[0], name) == (s.source, s.result) for s in network.states)
    expand = network.maker(maker.inputs[1])
    return maker if is_state and expand is not None and expand.operator == "Expand" else None


def ring_writes(items: Sequence[Layer | HostNode], tensors: Tensors) -> list[Layer | HostNode]:
    """``items`` with `RingWrite` in place of the operators that write ring buffers, as far as only
    layers read these, all in the same form."""
    forms = forms_read(items)
    return [
        _ring_write(tensors, item, forms) if isinstance(item, HostNode) else item for item in items
    ]


def _ring_write(tensors: Tensors, item: HostNode, forms: Mapping[str, TiledTensor]) -> HostNode:
    network, result = tensors.network, item.node.outputs[0]
    node = ring_written(network, result)
    held = forms.get(result)
    if node is None or held is None:
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
    rings = [Ring(source, held, axis)]
    if axis == 1 and _needs_copy(node, held, tensors):
        groups, places, columns, _ = held.image
        image = (1, groups * columns, places, 1)
        copied = replace(held, tensor=f"{held.tensor}_rows", image=image)
        rings.append(Ring(source, copied, 2, copy=True))
    return RingWrite(written, reason, tuple(rings))


def _needs_copy(node: Node, held: TiledTensor, tensors: Tensors) -> bool:
    """Whether layers can write the rows of values that ``node`` writes, ``held`` in tiles, with a
    copy of all rows. Where the host computes the shares it divides the launch in any case, and
    writes them in fewer cycles.

    Runs of one token and of several have the same variables, so this depends only on properties
    that both have in common.
    """
    config, network, rows = tensors.config, tensors.network, node.inputs[2]
    shares = [
        network.maker(product.inputs[0]) for product in network.nodes.readers(node.outputs[0])
    ]
    kinds = {(maker.domain, maker.operator) for maker in shares if maker is not None}
    if kinds != {(DOMAIN, ROW_SOFTMAX)}:
        return False
    maker = network.maker(rows)
    while maker is not None and (is_mover(network, maker) or maker.operator in _CONVERSIONS):
        rows = maker.inputs[0]
        maker = network.maker(rows)
    stored = network.types[rows].dtype == np.int8
    return stored and holds_factors(tensors.env) and held.image[2] % config.block_out == 0


def ring_stores(items: Sequence[Layer | HostNode], tensors: Tensors) -> list[Layer | HostNode]:
    """``items`` with layers that store the only new row of a ring buffer in place of each
    `RingWrite` whose row is the result of a layer."""
    readers = Counter(tensors.root(name) for item in items for name in item.reads)
    makers = {item.result.tensor: item for item in items if isinstance(item, Layer)}
    outputs = {*map(tensors.root, tensors.network.outputs)}
    changed: dict[int, Layer] = {}
    # By the tensor that they make, layers to run before its first reader: the bus is idle there,
    # while a Softmax is computed.
    later: dict[str, list[Layer]] = {}
    for item in items:
        if not isinstance(item, RingWrite):
            continue
        name, place = map(tensors.root, item.node.inputs)
        maker = makers.get(name)
        is_free = readers[name] == 1 and name not in outputs
        if maker is not None and is_free and _stores_row(maker, item.rings, tensors):
            changed[id(maker)], *later[item.node.outputs[0]] = _ring_layers(
                maker, item, place, tensors
            )
    result: list[Layer | HostNode] = []
    for item in items:
        if isinstance(item, RingWrite) and item.node.outputs[0] in later:
            continue
        for name in item.reads:
            result += later.get(name, [])
            later[name] = []
        result.append(changed.get(id(item), item))
    return result


def _stores_row(layer: Layer, rings: Sequence[Ring], tensors: Tensors) -> bool:
    """Whether ``layer`` stores a single row per matrix in whole tiles, in the order of its
    elements, and there is a copy if the row is one of values."""
    ring, *copies = rings
    rows, columns, *pixels = layer.result.image
    groups, *sizes = ring.operand.image[:3]
    width, tile = sizes[2 - ring.axis], tensors.config.block_out
    return (
        (ring.axis == 2 or bool(copies))
        and holds_factors(tensors.env)
        and layer.result.layout == tensors.output_layout
        and pixels == [1, 1]
        and rows * columns == groups * width
        and not columns % tile
        and not width % tile
    )


def _ring_layers(maker: Layer, item: RingWrite, place: str, tensors: Tensors) -> Iterator[Layer]:
    """The layer ``maker``, storing its result as the row of a ring buffer at ``place``, and for
    values the layer that transposes the tiles with this row."""
    config, (result,) = tensors.config, item.node.outputs
    read, *copies = item.rings
    tile, tile_bytes = config.block_out, config.wgt.element_bytes
    ring = copies[0] if copies else read
    groups, columns, rows, _ = ring.operand.image
    across, down = columns // tile, tiles(rows, tile)
    offsets = [
        (group * down * across + column) * tile_bytes
        for group in range(groups)
        for column in range(across)
    ]
    by_row = Motion(tile, across * tile_bytes, tile_bytes // tile)
    row = WindowSlices(ring, tuple(offsets), tile_bytes // tile, by_row, place)
    made = replace(maker.result, tensor=ring.operand.tensor)
    yield replace(maker, result=made, runs=(), in_windows={RESULT: row})
    if not copies:
        return
    by_tile = Motion(tile, across * tile_bytes, 0)
    whole = WindowSlices(ring, (0,), across * tile_bytes, by_tile, place)
    offsets = [number * down * tile_bytes for number in range(across)]
    turned = WindowSlices(read, tuple(offsets), tile_bytes, Motion(tile, tile_bytes, 0), place)
    image = (across * tile, tile, 1, 1)
    function, constants = transposing_tiles(across, item.node, tensors)
    given = TiledTensor(ring.operand.tensor, image, read.operand.layout)
    stored = TiledTensor(result, image, tensors.output_layout)
    yield Layer(
        f"{item.node.name}, Transpose of tiles with a new row",
        "Transpose",
        (),
        (given,),
        stored,
        function,
        constants,
        0,
        in_windows={0: whole, RESULT: turned},
    )
