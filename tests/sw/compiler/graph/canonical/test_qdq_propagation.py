"""Operators that move, select, join or clip elements before a product, with results that are not
quantized: the product is nevertheless computed on integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.canonical.canonical_form import canonical
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network

Make = Callable[..., Any]


def gather(indices: Any, axis: int) -> Callable[[Any], Any]:
    return lambda graph: graph.node("Gather", graph.constant(indices, np.int64), axis=axis)


def padded(value: float) -> Callable[[Any], Any]:
    amounts = [0, 0, 1, 1, 0, 0, 1, 1]
    return lambda graph: graph.node(
        "Pad", graph.constant(amounts, np.int64), graph.constant(value, np.float32)
    )


def joined(graph: Any) -> Any:
    first = graph.value
    graph.value = graph.nodes[1].output[0]  # with the same scale and zero point
    return graph.node("Concat", first, axis=1)


def clipped(graph: Any) -> Any:
    return graph.node("Clip", graph.constant(0, np.float32), graph.constant(0.5, np.float32))


@pytest.mark.parametrize("zero", [0, 9])
@pytest.mark.parametrize(
    ("between", "channels", "host"),
    [
        (lambda graph: graph.node("DepthToSpace", blocksize=2), 1, set()),
        (lambda graph: graph.node("SpaceToDepth", blocksize=2), 16, set()),
        (gather([2, 0, 3, 1], 1), 4, set()),
        (gather([2, 0, 3, 1], 2), 4, set()),
        (gather([2, 3, 4], -1), 4, set()),
        (padded(0.25), 4, set()),
        (joined, 8, set()),
        (lambda graph: graph.node("Relu"), 4, set()),
        (clipped, 4, set()),
    ],
)
def test_products_behind_moves_are_of_integers(
    qdq: Make, between: Callable[[Any], Any], channels: int, host: set[str], zero: int
) -> None:
    graph = qdq((1, 4, 8, 8)).qdq(2**-5, zero).conv(4, 4, 1).qdq(2**-5, zero)
    between(graph).conv(channels, 5, 1).qdq(2**-4)
    with Session(graph.model(), "tiny-extended") as session:
        assert session.check({"x": graph.images()}).ok
        products = [item for item in session.layers if item.operator.startswith("QLinear")]
        assert {item.placed_on for item in products} == {"machine"}
        assert len(products) == 2
        others = {item.operator for item in session.layers if item.placed_on == "host"}
    assert others - {"QuantizeLinear", "DequantizeLinear", "layout"} == host


def test_a_constant_that_no_integer_is_pads_in_float(qdq: Make) -> None:
    graph = qdq((1, 4, 8, 8)).qdq(2**-5).conv(4, 4, 1).qdq(2**-5)
    padded(0.26)(graph).conv(4, 5, 1).qdq(2**-4)
    with Session(graph.model(), "tiny-extended") as session:
        assert session.check({"x": graph.images()}).ok
        assert "Conv" in {item.operator for item in session.layers}


@pytest.mark.parametrize("operator", ["Max", "Min"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_extremes_of_several_tensors_are_of_two_integers_each(
    qdq: Make, operator: str, dtype: Any
) -> None:
    graph = qdq((1, 4, 6, 6), dtype).qdq(0.031, 60)
    source = graph.value
    branches = []
    for scale in (0.031, 0.04, 0.031):
        graph.value, graph.scale = source, 0.031
        weights = graph.weights(5, 4, 1, 1, scale=0.01)
        branches.append(graph.node("Conv", weights).qdq(scale, 60).value)
    graph.node(operator, *branches[:2]).qdq(0.031, 60)
    placed = graph.on_machine()
    assert placed.count(operator) == 2
    assert "QuantizeLinear" in "".join(placed)


def test_an_extreme_of_different_shapes_is_the_hosts(qdq: Make) -> None:
    graph = qdq((1, 4, 6, 6)).qdq(0.031).conv(4, 4, 1).qdq(0.04)
    image = graph.value
    graph.node("GlobalAveragePool").qdq(0.04).node("Max", image).qdq(0.04)
    with Session(graph.model(), "tiny-extended") as session:
        assert session.check({"x": graph.images()}).ok
        (layer,) = [item for item in session.layers if item.operator == "Max"]
    assert layer.reason.startswith("its operands have different shapes")


@pytest.mark.parametrize("index", [0, -1])
def test_one_index_is_a_slice(qdq: Make, index: int) -> None:
    graph = qdq((1, 4, 6, 6)).qdq(2**-5).conv(4, 4, 1).qdq(2**-5)
    gather(index, 2)(graph).node("Unsqueeze", graph.constant([2], np.int64))
    assert graph.conv(4, 5, 1).qdq(2**-4).on_machine() == ["QLinearConv", "Slice", "QLinearConv"]


def test_a_resize_that_interpolates_is_the_hosts(qdq: Make) -> None:
    graph = qdq((1, 4, 6, 6)).qdq(2**-5).conv(4, 4, 1).qdq(2**-5)
    sizes = graph.constant([1, 1, 2, 2], np.float32)
    graph.node("Resize", "", sizes, mode="linear").qdq(2**-5).conv(4, 5, 1).qdq(2**-4)
    with Session(graph.model(), "tiny-extended") as session:
        assert session.check({"x": graph.images()}).ok
        (layer,) = [item for item in session.layers if item.operator == "Resize"]
    assert layer.reason == "it interpolates between pixels"


def test_an_image_that_is_flattened_is_no_block_of_pixels(qdq: Make) -> None:
    """A fully connected layer reads it in memory order."""
    graph = qdq((1, 4, 4, 4)).qdq(2**-5).conv(4, 4, 1).qdq(2**-5).node("Flatten")
    graph.node("Gemm", graph.weights(5, 64), transB=1).qdq(2**-3)
    network = canonical(load_network(graph.model(), 1))
    kernels = [
        network.constants[node.inputs[3]].shape[2:]
        for node in network.nodes
        if node.operator == "QLinearConv"
    ]
    assert kernels == [(1, 1), (1, 1)]


def test_fewer_elements_are_rescaled_before_an_upsampling(qdq: Make) -> None:
    graph = qdq((1, 4, 6, 6)).qdq(0.03).conv(4, 6, 1).qdq(0.9, 3)
    graph.upsample().qdq(0.9, 3).qdq(0.7, -9).conv(6, 4, 1).qdq(2.1)
    assert graph.on_machine() == ["QLinearConv+QuantizeLinear", "Resize", "QLinearConv"]


def test_an_upsampled_tensor_with_other_readers_is_rescaled_afterwards(qdq: Make) -> None:
    graph = qdq((1, 4, 6, 6)).qdq(0.03).conv(4, 6, 1).qdq(0.9, 3)
    large = graph.upsample().qdq(0.9, 3).value
    made = graph.conv(6, 6, 1).qdq(2.1, 5).value
    graph.value = large
    graph.qdq(0.7, -9).node("Concat", made, axis=1).qdq(1.9)
    assert graph.on_machine()[:2] == ["QLinearConv", "Resize"]
