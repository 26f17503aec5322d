"""Lower RowRotation, rotary position embedding, of `integer_operators`."""

from __future__ import annotations

from math import prod

import numpy as np

from amaranth_vta.sw.compiler.graph.index_maps import in_same_order, is_mover
from amaranth_vta.sw.compiler.graph.integer_rows import ROTATION_OPERANDS, line_of
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.rotation import (
    GREATEST,
    Rotation,
    missing_for_rotation,
    parameters,
    rotation,
    rotation_matrices,
)
from amaranth_vta.sw.runtime.network.tile_layout import Image, TileLayout
from amaranth_vta.sw.runtime.network.tiled_tensor import TiledTensor
from amaranth_vta.sw.runtime.scalars import pack

from .support.layer import Layer, Unsupported
from .support.row_groups import row_groups
from .support.tensors import INT8_RANGE, Tensors


def row_rotation(node: Node, tensors: Tensors) -> Layer:
    """Lower a RowRotation, fused with operators before it that split channels into heads. Raises
    `Unsupported`."""
    config, network = tensors.config, tensors.network
    x, result, waves = node.inputs[0], node.outputs[0], node.inputs[-2:]
    tensors.require_bytes(x, result)
    if missing := missing_for_rotation(config):
        raise Unsupported(f"it needs a machine with {missing}")
    shape = network.types[x].shape
    if not shape or shape != network.types[result].shape:
        raise Unsupported("its shape is not fixed, or its factors have more rows than its input")
    if config.batch > 1:
        raise Unsupported(f"tiles hold {config.batch} rows, whose factors differ")
    elements = shape[-1]
    if elements % config.block_out:
        raise Unsupported(
            f"its rows have {elements:,} elements, not a multiple of {config.block_out}"
        )
    cosines, sines = (network.types[name].shape for name in waves)
    if cosines != sines:
        raise Unsupported("its factors differ in shape")
    groups, positions, heads = row_groups(shape, cosines, "its factors")
    for name in waves:
        _require_small(network, name)
    constants = {
        name: tensors.constant(node, at) for at, name in enumerate(ROTATION_OPERANDS[:-2], 1)
    }
    line = line_of(constants | {"bias": np.zeros(1)}, network.types[result].dtype)
    places, signs = (constants[name].astype(np.int64) for name in ("places", "signs"))
    known = line is not None and line.factor.size == 1 and line.factor.min() > 0
    known &= places.shape == signs.shape == (elements,) and bool((abs(signs) == 1).all())
    known &= places.min() >= 0 and places.max() < elements
    if line is None or not known or network.types[x].dtype != np.int8:
        raise Unsupported("`vta quantize` does not write such operands")
    source, image = _source(node, tensors, shape)
    workload = Rotation(groups, positions, heads, elements // config.block_out)
    given = {
        "matrices": pack(rotation_matrices(places, signs, config), tensors.env.wgt_dtype),
        "scale": pack(
            parameters(int(line.factor.item()), line.shift, line.zero_point, config),
            tensors.env.acc_dtype,
        ),
    }
    factors: Image = (positions, elements, 1, 1)
    sources = [
        tensors.source(source, image),
        *(
            TiledTensor(in_same_order(network, name)[-1], factors, TileLayout.of(config.acc))
            for name in waves
        ),
    ]
    made = tensors.function(rotation, workload, node)
    out: Image = (prod(shape[:-1]), elements, 1, 1)
    return tensors.layer((node,), sources, out, made, given, INT8_RANGE)


def _source(node: Node, tensors: Tensors, shape: tuple[int, ...]) -> tuple[str, Image]:
    """The first tensor whose memory has the rows of ``shape`` one by one, and its shape there."""
    rows: Image = (prod(shape[:-1]), shape[-1], 1, 1)
    for name in reversed(in_same_order(tensors.network, node.inputs[0])):
        if (root := tensors.root(name)) in tensors.results:
            image = tensors.images[root]
            if image[2:] == (1, 1) and image[1] % tensors.config.block_out == 0:
                return name, image
    tensors.require_held(node.inputs[0], rows)
    return node.inputs[0], rows


def _require_small(network: Network, name: str) -> None:
    """Raise `Unsupported` unless a tensor of factors is at most `GREATEST` in magnitude."""
    node = network.maker(name)
    while node is not None and (is_mover(network, node) or node.operator == "Gather"):
        name = node.inputs[0]
        node = network.maker(name)
    value = network.constants.get(name)
    if node is not None and node.operator == "Clip" and not node.domain:
        bounds = [network.constants.get(item) for item in node.inputs[1:]]
        if len(bounds) == 2 and bounds[0] is not None and bounds[1] is not None:
            value = np.array([*bounds])
    if value is None or not value.size or np.abs(value.astype(np.int64)).max() > GREATEST:
        raise Unsupported(f"its factors may exceed {GREATEST:,}")
