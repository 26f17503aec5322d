"""Lower products with a constant matrix: QLinearMatMul, QGemm, MatMulInteger, and convolutions of
single pixels."""

from __future__ import annotations

from math import prod

from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.dense import Dense, dense
from amaranth_vta.sw.runtime.network.tile_layout import Image, tiles

from .product_of_two import product_of_two
from .support.layer import Layer
from .support.products import (
    ConstantProduct,
    QuantizedProduct,
    WholeProduct,
    require_known_zero_points,
)
from .support.tensors import Tensors


def matrix_product(node: Node, tensors: Tensors) -> Layer:
    """Lower a QLinearMatMul or QGemm and a following Clip. Raises `Unsupported`."""
    factor = tensors.network.constants.get(node.inputs[3])
    if node.operator == "QLinearMatMul" and (factor is None or factor.ndim > 2):
        return product_of_two(node, tensors)
    product = QuantizedProduct.of(node, tensors)
    return product_layer(
        product, tensors, tensors.rows(node.inputs[0]), tensors.rows(node.outputs[0])
    )


def matrix_sums(node: Node, tensors: Tensors) -> Layer:
    """Lower a MatMulInteger and the following addition of a bias. Raises `Unsupported`."""
    factor = tensors.network.constants.get(node.inputs[1])
    require_known_zero_points(node, tensors)
    if factor is None or factor.ndim > 2:
        return product_of_two(node, tensors)
    product = WholeProduct.of(node, tensors)
    return product_layer(
        product, tensors, tensors.rows(node.inputs[0]), tensors.rows(node.outputs[0])
    )


def product_layer(product: ConstantProduct, tensors: Tensors, image: Image, out: Image) -> Layer:
    """The layer of a product of one-pixel images; the machine may hold the input as larger images.
    Raises `Unsupported`."""
    node, config = product.nodes[0], tensors.config
    held = tensors.held(node.inputs[0], image)
    fits = (held[0], prod(held[1:])) == image[:2]
    source = tensors.product_input(node.inputs[0], held if fits else image, fits)
    held = source.image
    plain = Dense(
        rows=tiles(held[0], config.batch),
        # The features of a flattened image, in the order of its tiles in memory.
        inputs=tiles(held[1], config.block_in) * held[2] * held[3],
        outputs=tiles(out[1], config.block_out),
        requantize=product.requantize,
        terms=product.sums.terms,
        is_first=tensors.is_new(source.tensor),
    )
    workload = product.fastest(plain)
    if isinstance(product, QuantizedProduct):
        product, workload = product.with_fastest_scale(workload)
    weights, row_weights = product.packed(workload, lambda given: given.reshape(-1, *held[1:]))
    return product.layer(tensors, source, out, dense, workload, weights, row_weights=row_weights)
