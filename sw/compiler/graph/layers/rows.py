"""Lower the operators on rows of `integer_operators`: Softmax and normalizations."""

from __future__ import annotations

import numpy as np

from amaranth_vta.sw.compiler.graph.integer_operators import (
    LAYER_NORMALIZATION,
    NORMALIZATION_OPERANDS,
    SYMMETRIC,
)
from amaranth_vta.sw.compiler.graph.integer_rows import line_of
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.building_blocks.row_stages import (
    lane_matrices,
    missing_for_rows,
)
from amaranth_vta.sw.compiler.operators.normalization import (
    GREATEST_EPSILON,
    Arithmetic,
    Normalization,
    normalization,
)
from amaranth_vta.sw.compiler.operators.normalization import (
    parameters as normalization_parameters,
)
from amaranth_vta.sw.compiler.operators.softmax import (
    GREATEST,
    MOST_ELEMENTS,
    Softmax,
    parameters,
    softmax,
)
from amaranth_vta.sw.runtime.network.tile_layout import Image, tiles
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes, TiledTensor
from amaranth_vta.sw.runtime.scalars import pack

from .support.layer import Layer, Unsupported
from .support.row_groups import row_groups
from .support.tensors import INT8_RANGE, Tensors


def row_softmax(node: Node, tensors: Tensors) -> Layer:
    """Lower a RowSoftmax. Raises `Unsupported`."""
    x, _, mask, result = node.input(0), node.input(1), node.input(2), node.outputs[0]
    image = _rows(x, result, tensors)
    config, elements = tensors.config, image[1]
    table = tensors.constant(node, 1).astype(np.int64)
    if table[0] != GREATEST or table.min() < 0 or table.max() > GREATEST:
        raise Unsupported("its exponentials are not within 0 and the exponential of the maximum")
    symmetric = bool(node.attributes[SYMMETRIC])
    sources = [tensors.source(x, image)]
    constants: dict[str, Bytes] = {}
    whole = elements % config.block_out == 0
    groups, positions, heads = 1, 1, image[0]
    if mask:
        types = tensors.network.types
        groups, positions, heads = row_groups(types[x].shape or (), types[mask].shape, "its masks")
        if config.batch > 1:
            raise Unsupported(f"tiles hold {config.batch} rows, and its mask is for one")
        rows: Image = (positions, elements, 1, 1)
        tensors.require_bytes(mask)
        tensors.require_held(mask, rows)
        sources.append(tensors.source(mask, rows))
    elif not whole:
        rows = (config.batch, elements, 1, 1)
        ones = TiledTensor("mask", rows, tensors.output_layout)
        constants["mask"] = ones.pack(np.ones(rows, np.int8))
    constants["matrices"] = pack(lane_matrices(tensors.env), tensors.env.wgt_dtype)
    constants["parameters"] = pack(parameters(table, symmetric, config), tensors.env.acc_dtype)
    workload = Softmax(
        groups=groups,
        positions=positions,
        heads=tiles(heads, config.batch),
        vectors=tiles(elements, config.block_out),
        masked=bool(mask) or not whole,
    )
    made = tensors.function(softmax, workload, node)
    return tensors.layer((node,), sources, image, made, constants, INT8_RANGE)


def row_normalization(node: Node, tensors: Tensors) -> Layer:
    """Lower a RowLayerNorm or RowRMSNorm. Raises `Unsupported`."""
    x, result = node.inputs[0], node.outputs[0]
    image = _rows(x, result, tensors)
    config, elements = tensors.config, image[1]
    if elements % config.block_out:
        raise Unsupported(
            f"its rows have {elements:,} elements, not a multiple of {config.block_out}"
        )
    names = NORMALIZATION_OPERANDS[node.operator]
    constants = {name: tensors.constant(node, number) for number, name in enumerate(names, 1)}
    line = line_of(constants, tensors.network.types[result].dtype)
    centred = node.operator == LAYER_NORMALIZATION
    if centred:
        arithmetic = Arithmetic.of_mean(elements)
    else:
        # As a number from 0 to 255.
        zero = int(constants["zero"])
        arithmetic = Arithmetic.of_zero_point(elements, zero)
    epsilon = int(constants["epsilon"])
    known = centred or (0 <= zero <= 255 and int(constants["lift"]) == arithmetic.lift)
    if line is None or not known or not 0 <= epsilon <= GREATEST_EPSILON:
        raise Unsupported("`vta quantize` does not write such constants")
    workload = Normalization(
        rows=tiles(image[0], config.batch),
        vectors=tiles(elements, config.block_out),
        lift=arithmetic.lift,
        centred=centred,
        zero_point=0 if centred else zero - 128,
        negated=bool((line.factor < 0).any()),
    )
    given = {
        "matrices": pack(lane_matrices(tensors.env), tensors.env.wgt_dtype),
        "parameters": pack(
            normalization_parameters(arithmetic, epsilon, line, config), tensors.env.acc_dtype
        ),
    }
    made = tensors.function(normalization, workload, node)
    sources = [tensors.source(x, image)]
    return tensors.layer((node,), sources, image, made, given, INT8_RANGE)


def _rows(x: str, result: str, tensors: Tensors) -> Image:
    """The rows of ``x``, which the machine holds. Raises `Unsupported`."""
    tensors.require_bytes(x, result)
    if missing := missing_for_rows(tensors.config):
        raise Unsupported(f"it needs a machine with {missing}")
    image = tensors.rows(x)
    if image[1] > MOST_ELEMENTS:
        raise Unsupported(f"its rows have {image[1]:,} elements; {MOST_ELEMENTS:,} are supported")
    tensors.require_held(x, image)
    return image
