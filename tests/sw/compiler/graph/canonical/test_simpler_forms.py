"""Operators are simplified, and sequences become images of one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from amaranth_vta.session import Session
from tests.support.transformer_files import Graph

Make = Callable[..., Any]
BOTH = pytest.mark.parametrize("dtype", [np.int8, np.uint8])


@BOTH
@pytest.mark.parametrize("groups", [1, 4])
def test_sequences_are_images_of_one_row(qdq: Make, dtype: Any, groups: int) -> None:
    low = np.iinfo(dtype).min
    graph = qdq((1, 4, 21), dtype).qdq(0.031, low + 130)
    first = graph.weights(8, 4 // groups, 3, scale=0.02)
    graph.node("Conv", first, group=groups, pads=[1, 2], strides=[2], dilations=[2])
    graph.qdq(0.3, low + 120).node("MaxPool", kernel_shape=[3], pads=[1, 1])
    graph.node("Conv", graph.weights(5, 8, 2, scale=0.02), auto_pad="SAME_UPPER")
    graph.node("Relu").qdq(1.1, low + 100)
    graph.node("AveragePool", kernel_shape=[2], strides=[2]).qdq(0.9, low + 90)
    assert graph.on_machine() == ["QLinearConv", "MaxPool", "QLinearConv", "QLinearConv"]


def test_sequences_are_padded_as_images(qdq: Make) -> None:
    graph = qdq((1, 4, 13)).qdq(0.031, 3)
    for value, dilation in ((0, 1), (-0.7, 2)):
        amounts = graph.constant([0, 0, 2 * dilation, 0, 0, 0], np.int64)
        graph.node("Pad", amounts, graph.constant(value, np.float32)).qdq(graph.scale, 3)
        graph.node("Conv", graph.weights(4, 4, 3, scale=0.02), dilations=[dilation]).qdq(0.1, 3)
    # The convolution itself pads with zero.
    assert graph.on_machine() == ["QLinearConv", "Pad", "QLinearConv"]


@pytest.mark.parametrize(
    ("shape", "attributes", "count"),
    [
        ((1, 4, 9, 10), {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}, 2),
        ((1, 4, 9, 12), {"kernel_shape": [7, 5], "strides": [2, 3], "auto_pad": "SAME_LOWER"}, 2),
        ((1, 4, 12, 11), {"kernel_shape": [5, 5], "dilations": [2, 1], "strides": [3, 2]}, 2),
        ((1, 4, 9, 10), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, 1),
        ((1, 4, 30, 31), {"kernel_shape": [30, 31]}, 2),
        ((1, 3, 4, 500), {"kernel_shape": [4, 500]}, 3),
        ((1, 3, 200, 1), {"kernel_shape": [190, 1], "strides": [2, 1], "pads": [9, 0, 4, 0]}, 4),
    ],
)
def test_large_windows_become_smaller_ones(
    qdq: Make, shape: tuple[int, ...], attributes: dict[str, Any], count: int
) -> None:
    graph = qdq(shape).qdq(0.031, 3).conv(shape[1], 5, 1).qdq(0.3, -4)
    graph.node("MaxPool", **attributes)
    assert graph.on_machine() == ["QLinearConv", *["MaxPool"] * count]


def test_windows_that_are_too_large_are_the_hosts(qdq: Make) -> None:
    graph = qdq((1, 3, 1, 400)).qdq(0.031).conv(3, 4, 1).qdq(0.3)
    graph.node("MaxPool", kernel_shape=[1, 260], pads=[0, 200, 0, 0])
    with Session(graph.model(), "tiny-extended") as session:
        assert session.check({"x": graph.images(1)}).ok
        (layer,) = [item for item in session.layers if item.operator == "MaxPool"]
    assert layer.reason == "its windows have more than 256 pixels"


def test_what_does_nothing_is_removed(qdq: Make) -> None:
    graph = qdq((1, 4, 8, 8)).qdq(0.031, 3).node("Identity").node("Dropout")
    graph.node("Reshape", graph.constant([1, 4, 8, 8], np.int64))
    graph.node("Sum").node("Conv", graph.weights(5, 4, 3, 3, scale=0.02))
    # PyTorch's exporter writes a Cast to the same type after each QuantizeLinear.
    graph.quantize(0.9).node("Cast", to=TensorProto.INT8).dequantize()
    assert graph.on_machine() == ["QLinearConv"]


def test_a_dropout_whose_mask_is_read_stays(qdq: Make) -> None:
    graph = qdq((1, 4)).qdq(0.031).node("Dropout")
    graph.nodes[-1].output.append("mask")
    graph.nodes.append(helper.make_node("Where", ["mask", graph.value, graph.value], ["z"]))
    graph.value = "z"
    with Session(graph.qdq(0.04).model(), "tiny-extended") as session:
        assert "Dropout" in {layer.operator for layer in session.layers}


@BOTH
def test_a_sum_of_two_is_an_addition(qdq: Make, dtype: Any) -> None:
    graph = qdq((1, 4, 8, 8), dtype).qdq(0.031, np.iinfo(dtype).min + 130)
    branch = graph.value
    graph.node("Conv", graph.weights(4, 4, 1, 1, scale=0.01)).qdq(0.05, 2)
    assert graph.node("Sum", branch).qdq(0.0617).on_machine() == ["QLinearConv+Add"]


def test_reshapes_in_a_row_are_one(qdq: Make) -> None:
    graph = qdq((1, 4, 4, 6)).qdq(0.031).conv(4, 8, 1).qdq(0.3)
    graph.node("Reshape", graph.constant([1, 2, 4, 24], np.int64))
    graph.node("Reshape", graph.constant([1, 8, 24], np.int64))
    graph.node("Conv", graph.weights(3, 8, 3, scale=0.01)).qdq(0.4)
    assert graph.on_machine() == ["QLinearConv", "QLinearConv"]


def test_readers_with_quantizations_of_their_own_share_one(qdq: Make) -> None:
    """As written by the quantizer option ``DedicatedQDQPair``."""
    graph = qdq((1, 4, 8, 8)).qdq(0.031)
    graph.node("Conv", graph.weights(4, 4, 1, 1))
    float_result = graph.value
    first = graph.qdq(0.7, 3).node("Conv", graph.weights(4, 4, 1, 1, scale=0.01)).qdq(0.5, 1).value
    graph.value = float_result
    graph.qdq(0.7, 3).node("Add", first).qdq(0.9)
    assert graph.on_machine() == ["QLinearConv", "QLinearConv+Add"]


@pytest.mark.parametrize("kind", ["float", "another scale", "int8"])
def test_a_bias_of_any_kind_is_rounded_to_steps_of_the_sum(qdq: Make, kind: str) -> None:
    graph = qdq((1, 4, 8, 8)).qdq(0.031)
    weights = graph.weights(5, 4, 3, 3, scale=0.02)
    if kind == "float":
        bias = graph.constant(graph.rng.normal(0, 0.4, 5), np.float32)
    else:
        dtype: Any = np.int8 if kind == "int8" else np.int32
        data = graph.constant(graph.rng.integers(-100, 100, 5), dtype)
        inputs, bias = [data, graph.constant(0.011, np.float32)], "bias"
        graph.nodes.append(helper.make_node("DequantizeLinear", inputs, [bias]))
    assert graph.node("Conv", weights, bias).qdq(0.9).on_machine() == ["QLinearConv"]


@pytest.mark.parametrize("shape", [(1, 6, 20), (2, 3, 5, 20)])
def test_a_bias_behind_rows_of_any_number_of_axes(qdq: Make, shape: tuple[int, ...]) -> None:
    graph = qdq(shape).qdq(0.031, 3)
    graph.node("MatMul", graph.weights(20, 9, scale=np.full(9, 0.02), axis=1))
    graph.node("Add", graph.constant(graph.rng.normal(0, 0.3, 9), np.float32)).node("Relu")
    assert graph.qdq(0.7, 5).on_machine() == ["QLinearConv"]


@pytest.mark.parametrize(("operator", "keeps"), [("GlobalMaxPool", 1), ("ReduceMax", 0)])
@BOTH
def test_the_greatest_of_an_image_is_a_pooling(
    qdq: Make, dtype: Any, operator: str, keeps: int
) -> None:
    graph = qdq((2, 5, 4, 6), dtype).qdq(0.031, np.iinfo(dtype).min + 130).conv(5, 7, 1).qdq(0.09)
    attributes = {} if operator == "GlobalMaxPool" else {"axes": [-1, 2], "keepdims": keeps}
    graph.node(operator, **attributes).qdq(0.09)
    assert graph.on_machine() == ["QLinearConv", "MaxPool"]


@pytest.mark.parametrize("operator", ["ReduceMean", "ReduceSum"])
@pytest.mark.parametrize(("axes", "keeps"), [([2], 1), ([3], 0), ([3, 2], 0)])
def test_reductions_of_rows_and_columns_are_averages(
    qdq: Make, operator: str, axes: list[int], keeps: int
) -> None:
    graph = qdq((2, 5, 4, 6)).qdq(0.031, 2).conv(5, 7, 1).qdq(0.09)
    axes_given = {"axes": axes}
    inputs = []
    if operator == "ReduceSum":
        inputs, axes_given = [graph.constant(axes, np.int64)], {}
    graph.node(operator, *inputs, keepdims=keeps, **axes_given).node("Relu").qdq(0.1, -50)
    # A convolution with equal weights, perhaps in one layer with the convolution before it.
    assert "+".join(graph.on_machine()) == "QLinearConv+QLinearConv"


@BOTH
@pytest.mark.parametrize("shape", [(1, 4, 6, 6), (2, 4, 9)])
def test_prelu_with_slopes_per_channel_is_the_sum_of_its_sides(
    qdq: Make, dtype: Any, shape: tuple[int, ...]
) -> None:
    low = np.iinfo(dtype).min
    graph = qdq(shape, dtype).qdq(0.031, low + 130)
    graph.node("Conv", graph.weights(5, 4, *[1] * (len(shape) - 2))).qdq(0.09, low + 101)
    slopes = np.array([0.25, -0.3, 0, 1.5, 0.011]).reshape(5, *[1] * (len(shape) - 2))
    graph.node("PRelu", graph.constant(slopes, np.float32)).qdq(0.0713, low + 97)
    placed = graph.on_machine()
    # For a sequence, Relu becomes a bound of the rescaling.
    assert placed[1] in ("Relu", "QuantizeLinear")
    assert [*placed[:1], *placed[2:]] == ["QLinearConv", "Mul", "Add"]


def test_prelu_with_one_slope_is_one_table(qdq: Make) -> None:
    graph = qdq((1, 4, 6, 6)).qdq(0.031).conv(4, 5, 1).qdq(0.09)
    graph.node("PRelu", graph.constant([[[0.2]]], np.float32)).qdq(0.07, 3)
    assert graph.on_machine() == ["QLinearConv+PRelu"]


@pytest.mark.parametrize(("factors", "count"), [((3, 3), 1), ((3, 2), 2)])
def test_equal_steps_of_blocks_are_one(factors: tuple[int, int], count: int) -> None:
    g = Graph()
    x = g.input("x", g.normal(2, 3, 4))
    products = [g.add("Mul", x, g.constant(np.float32(factor))) for factor in factors]
    g.output(g.add("Concat", *(g.add("Round", item) for item in products), axis=2))
    model, feeds = g.made()
    with Session(model, "pynq-extended") as session:
        report = session.check(feeds)
        operators = [layer.operator for layer in session.layers]
    assert report.ok
    assert report.file is not None
    assert all(item.of_range == 0 for item in report.file.outputs.values())
    assert operators.count("Mul") == operators.count("Round") == count
