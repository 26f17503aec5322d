"""Rearrange second factors of products, as layers store them, into weight tiles on the machine.

A matrix (groups · rows, columns), as layers store it, has BLOCK_OUT columns of one row per tile.
BLOCK_OUT successive rows are a weight tile: its outputs are rows, its inputs are columns. Keys,
which a product multiplies transposed, therefore only need another order of their tiles. Values are
also transposed within weight tiles. If the rows of a group do not fill its last weight tile, rows
of zeros follow them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.graph.second_factor import (
    SECOND_FACTOR,
    is_symmetric_factor,
    swaps_matrices,
)
from amaranth_vta.sw.compiler.operators.building_blocks.identity import reads_what_it_stores
from amaranth_vta.sw.compiler.operators.stack_rows import StackRows, stack_rows
from amaranth_vta.sw.compiler.operators.transpose_tiles import TransposeTiles, transpose_tiles
from amaranth_vta.sw.runtime.network.tile_layout import Image, TileLayout, tiles
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes, TiledTensor
from amaranth_vta.sw.runtime.scalars import pack

from .support.layer import Layer
from .support.tensors import Tensors


def is_second_factor(network: Network, name: str) -> bool:
    """Whether a product reads a tensor, or its transpose, as second factor."""
    for reader in network.nodes.readers(name):
        place, _ = SECOND_FACTOR.get((reader.domain, reader.operator), (None, None))
        if place is not None and reader.inputs[place] == name:
            return True
        if swaps_matrices(reader) and is_second_factor(network, reader.outputs[0]):
            return True
    return False


def may_be_stored(network: Network, name: str, config: Config) -> bool:
    """Whether products read a tensor, or its transpose, only as second factor, so that
    `stored_factor` brings it into weight tiles if a layer stores it."""
    readers = network.nodes.readers(name)
    shape = network.types[name].shape
    if shape is None or shape[-1] % config.block_out or not holds_factors(Environment(config)):
        return False
    if readers and all(map(swaps_matrices, readers)):
        return all(is_symmetric_factor(network, reader.outputs[0]) for reader in readers)
    return is_symmetric_factor(network, name)


def holds_factors(env: Environment) -> bool:
    """Whether rows as layers store them are weight tiles."""
    config = env.config
    same = reads_what_it_stores(env) and config.wgt_width == config.out_width
    return config.batch == 1 and same


def stored_factor(
    node: Node, second: str, matrices: Image, tensors: Tensors
) -> tuple[TiledTensor, tuple[Layer, ...]] | None:
    """The ``second`` factor of ``node``, a stack of ``matrices``, in weight tiles, and the layers
    that rearrange it. None unless a layer stores it, or its transpose, as rows whose columns fill
    tiles."""
    config, network, (groups, inputs, outputs, _) = tensors.config, tensors.network, matrices
    tile = config.block_out
    if not holds_factors(tensors.env):
        return None
    maker = network.maker(second)
    is_transposed = maker is not None and swaps_matrices(maker)
    root = tensors.root(maker.inputs[0] if maker is not None and is_transposed else second)
    rows, columns = (outputs, inputs) if is_transposed else (inputs, outputs)
    image = (groups * rows, columns, 1, 1)
    if columns % tile or root not in tensors.results or tensors.images[root] != image:
        return None

    layers: list[Layer] = []
    held, across = tensors.source(root, image), columns // tile
    whole = tiles(rows, tile) * tile

    def rearranged(
        what: str, label: str, function: Callable[[], Function], constants: dict[str, Bytes]
    ) -> TiledTensor:
        name = network.unused_name(f"{node.name}_{what}")
        result = TiledTensor(name, (groups * whole, columns, 1, 1), TileLayout.of(config.wgt))
        named = f"{node.name}, {label}"
        layers.append(Layer(named, "Transpose", (), (held,), result, function, constants, 0))
        return result

    if across > 1 or rows < whole:
        # Keys: tiles of the same rows in sequence. Values: those of the same columns.
        workload = StackRows(groups, rows, across, by_columns=not is_transposed)
        function = tensors.function(stack_rows, workload, node)
        identity = tensors.identity_constant()
        held = rearranged("stacked", "rows of its second factor in tiles", function, identity)
    if not is_transposed:
        count = groups * whole * columns // tile**2
        function, constants = transposing_tiles(count, node, tensors)
        label = "Transpose of its second factor"
        held = rearranged("transposed", label, function, constants)
    return held, tuple(layers)


def transposing_tiles(
    count: int, node: Node, tensors: Tensors
) -> tuple[Callable[[], Function], dict[str, Bytes]]:
    """The function that transposes ``count`` tiles of a factor of ``node``, and its constants."""
    workload = TransposeTiles(count)
    identity = pack(np.eye(tensors.config.block_out, dtype=np.int8), tensors.env.inp_dtype)
    return tensors.function(transpose_tiles, workload, node), {"identity": identity}
