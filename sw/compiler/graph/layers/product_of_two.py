"""Lower QLinearMatMul and MatMulInteger of two computed tensors, as in attention.

The second factor passes through the host, which packs it as weights, unless a layer stores it and
the zero points are 0: then it stays on the machine. A stack of matrices, one per attention head, is
one layer.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.graph.second_factor import SECOND_FACTOR
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import (
    Requantization,
    SharedScale,
    WholeSums,
)
from amaranth_vta.sw.compiler.operators.dense import Dense, dense
from amaranth_vta.sw.runtime.network.factors import FactorBias, FactorWeights, terms_between
from amaranth_vta.sw.runtime.network.tile_layout import Image, TileLayout, tiles
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes, TiledTensor

from .ring_buffers import ring_written
from .stored_factors import stored_factor
from .support.layer import Layer, Unsupported
from .support.products import in_parts
from .support.sums import (
    RequantizedSums,
    constants_of,
    float32_scale,
    roundings,
    whole_sums,
)
from .support.tensors import INT8_RANGE, Tensors
from .support.tiled_constants import pack_bias, pack_weights
from .support.weight_terms import fastest


def product_of_two(node: Node, tensors: Tensors) -> Layer:
    """Lower a QLinearMatMul and a following Clip, or a MatMulInteger, whose second factor is not
    constant or is a stack of matrices. Raises `Unsupported`."""
    config, network, result = tensors.config, tensors.network, node.outputs[0]
    first, second = _factors(node)
    whole = node.operator == "MatMulInteger"
    tensors.require_bytes(first, second, *([] if whole else [result]))
    if network.types[first].dtype != network.types[second].dtype:
        raise Unsupported("one of its factors is int8 and the other uint8")
    image, matrices = _shapes(node, tensors)
    groups, summed, outputs, _ = matrices
    rows = image[0] // groups
    if rows % config.batch:
        raise Unsupported(f"its {rows:,} rows are not a multiple of BATCH, {config.batch}")
    given = tensors.product_input(first, image, tensors.held(first, image) == image)
    limits, clip = (INT8_RANGE, ()) if whole else tensors.clip_after(result)
    _, zero_at = SECOND_FACTOR[node.domain, node.operator]
    zero_points = tensors.zero_point(node, 2), tensors.zero_point(node, zero_at)
    how, constants = _requantization(node, summed, zero_points, limits, tensors)
    zero, added, rest = zero_points[1], constants[0], constants[1:]
    # With zero points of 0, the bias does not depend on the second factor.
    is_constant_bias = zero_points == (0, 0)
    is_ring = is_constant_bias and ring_written(tensors.network, second) is not None
    if is_ring and rest:
        # The product waits for the bus, so parameters are loaded once for all outputs.
        how = SharedScale(wraps=how.wraps)
    plain = Dense(
        rows=rows // config.batch,
        inputs=tiles(summed, config.block_in),
        outputs=tiles(outputs, config.block_out),
        requantize=how,
        terms=terms_between(-128 - zero, 127 - zero),
        groups=groups,
    )
    workload = fastest(plain, -128 - zero, 127 - zero, config)
    # The part of the zero point that weights subtract; row sums subtract the rest.
    taken = 0 if workload.row_sums else zero
    weights = FactorWeights(taken, workload.terms, config.block_out)
    bias = FactorBias(*zero_points, added, tuple(rest), config.batch, config.block_out)
    packed = TiledTensor(tensors.root(second), matrices, TileLayout.of(config.acc), bias)
    stored = stored_factor(node, second, matrices, tensors) if is_constant_bias else None
    before: tuple[Layer, ...] = ()
    own: dict[str, Bytes] = {}
    if stored is not None:
        factor, before = stored
    else:
        factor = TiledTensor(tensors.root(second), matrices, TileLayout.of(config.wgt), weights)
    sources = [given, factor]
    if isinstance(how, SharedScale):
        own = {"bias": pack_bias(np.tile(constants, (config.block_out, 1)), config)}
    elif stored is not None or is_ring:
        own = {"bias": packed.pack(np.zeros(matrices, np.int8))}
    else:
        sources.append(packed)
    row_weights = {}
    if workload.row_sums:
        row = np.full((config.block_out, summed, 1, 1), -zero, np.int16)
        row_weights = {"row_weights": pack_weights(row, config)}
    made = tensors.function(dense, workload, node)
    out = (image[0], outputs, 1, 1)
    macs = tensors.network.macs.get(node.name, prod(image) * outputs)
    layer = tensors.layer((node, *clip), sources, out, made, {}, limits, macs)
    if isinstance(how, WholeSums):
        layer = in_parts(layer, how, tensors)
    layer = replace(layer, constants=own | row_weights | layer.constants, first=before)
    tensors.products[layer.result.tensor] = layer, dense, workload
    return layer


def _factors(node: Node) -> tuple[str, str]:
    second_at, _ = SECOND_FACTOR[node.domain, node.operator]
    return node.inputs[0], node.inputs[second_at]


def _shapes(node: Node, tensors: Tensors) -> tuple[Image, Image]:
    """The shape of the first factor, as the rows of all products, and of the second, as a stack of
    matrices. In the canonical form both stacks are equal, or the second factor is one matrix."""
    a, b = (tensors.network.types[name].shape for name in _factors(node))
    if a is None or b is None:
        raise Unsupported("the shapes of its factors are known only at run time")
    if len(a) < 2 or len(b) < 2:
        raise Unsupported(f"its factors have the shapes {a} and {b}, not those of matrices")
    return (prod(a[:-1]), a[-1], 1, 1), (prod(b[:-2]), b[-2], b[-1], 1)


def _requantization(
    node: Node,
    summed: int,
    zero_points: tuple[int, int],
    limits: tuple[int, int],
    tensors: Tensors,
) -> tuple[Requantization, list[int]]:
    """The requantization of the sums, and its constants for a bias of 0."""
    first, second = (
        [bound - zero for bound in tensors.range(name)]
        for name, zero in zip(_factors(node), zero_points, strict=True)
    )
    ends = [a * b * summed for a in first for b in second]
    if node.operator == "MatMulInteger":
        return whole_sums(np.array([min(ends)]), np.array([max(ends)]), tensors.config), [0]
    scale = float32_scale(tensors, node)
    if scale.size != 1:
        raise Unsupported("a scale is per channel, not per tensor")
    low, high = limits
    sums = RequantizedSums(
        weights=np.zeros((1, 1), np.int16),
        bias=np.zeros(1, np.int64),
        scale=scale,
        zero_point=tensors.zero_point(node, 7),
        low=low,
        high=high,
        least=np.array([min(ends)]),
        most=np.array([max(ends)]),
        roundings=roundings(node, 1),
    )
    how, constants = constants_of(sums, tensors.config)
    return how, [int(value) for value in constants.reshape(-1)]
