"""Operators that move integers, clip them, or change their scale: on the machine, and exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.session import Session

Make = Callable[..., Any]
TABLES = PRESETS["tiny-extended"]
NO_TABLES = replace(TABLES, lookup=0)
BOTH = pytest.mark.parametrize("dtype", [np.int8, np.uint8])


def convolved(qdq: Make, dtype: Any) -> Any:
    low = np.iinfo(dtype).min
    return qdq((1, 3, 8, 8), dtype).qdq(0.031, low + 120).conv(3, 6).qdq(0.3, low + 130)


def assert_placed(graph: Any, operators: list[str], config: Config | str = TABLES) -> Any:
    """Assert that everything but float conversions is on the machine, and that every element is
    equal.
    """
    with Session(graph.model(), config) as session:
        report = session.check({"x": graph.images(2)})
        layers = [layer for layer in session.layers if layer.operator != "layout"]
    host = [layer for layer in layers if layer.placed_on == "host"]
    assert {layer.reason for layer in host} == {"float tensors are the host's"}
    assert report.histogram == {}
    assert np.unique(report.outputs["y"]).size > 3
    assert [layer.operator for layer in layers if layer.placed_on == "machine"] == operators


@BOTH
def test_a_change_of_scale(qdq: Make, dtype: Any) -> None:
    graph = convolved(qdq, dtype).qdq(0.41, 77)
    assert_placed(graph, ["QLinearConv", "QuantizeLinear"], NO_TABLES)
    assert_placed(graph, ["QLinearConv+QuantizeLinear"])


@BOTH
def test_a_change_of_scale_with_bounds(qdq: Make, dtype: Any) -> None:
    graph = convolved(qdq, dtype).node("Relu").qdq(0.41, 77)
    assert_placed(graph, ["QLinearConv", "QuantizeLinear"], NO_TABLES)
    assert_placed(graph, ["QLinearConv+Relu"])


@BOTH
def test_bounds_of_what_others_read_too(qdq: Make, dtype: Any) -> None:
    graph = convolved(qdq, dtype)
    branch = graph.value
    graph.node("Relu").qdq(0.3, np.iinfo(dtype).min + 130)
    graph.node("Add", branch).qdq(0.5, 9)
    assert_placed(graph, ["QLinearConv", "Clip", "Add"])


@BOTH
@pytest.mark.parametrize("swapped", [False, True])
def test_a_difference(qdq: Make, dtype: Any, swapped: bool) -> None:
    low = np.iinfo(dtype).min
    graph = qdq((1, 4, 8, 8), dtype).qdq(0.05, low + 120)
    first = graph.value
    second = graph.node("Conv", graph.weights(4, 4, 1, 1, scale=0.01)).qdq(0.03, low + 130).value
    graph.value = first if swapped else second
    graph.node("Sub", second if swapped else first).node("Relu").qdq(0.11, low + 9)
    assert_placed(graph, ["QLinearConv+Sub"])


def test_operators_of_two_tensors_that_the_machine_lacks(qdq: Make) -> None:
    graph = convolved(qdq, np.int8)
    first = graph.value
    graph.node("MaxPool", kernel_shape=[3, 3], pads=[1] * 4).node("Div", first).qdq(0.3)
    with Session(graph.model(), TABLES) as session:
        assert session.check({"x": graph.images()}).ok
        (layer,) = [item for item in session.layers if item.operator == "Div"]
    assert layer.reason == "the machine has no Div of two tensors"


def test_normalization_in_training_is_the_hosts(qdq: Make) -> None:
    graph = convolved(qdq, np.int8)
    parameters = [graph.constant(np.linspace(0.5, 1, 6), np.float32) for _ in range(4)]
    graph.node("BatchNormalization", *parameters, training_mode=1)
    graph.nodes[-1].output.extend(["mean", "variance"])
    graph.qdq(0.3)
    with Session(graph.model(), TABLES) as session:
        assert session.check({"x": graph.images()}).ok
        (layer,) = [item for item in session.layers if item.operator == "BatchNormalization"]
    assert layer.reason == "it computes the mean and the variance of its input"


@BOTH
@pytest.mark.parametrize("channels", [(4, 4, 4), (3, 5, 6), (8, 1, 2)])
def test_a_concatenation_of_scales(qdq: Make, dtype: Any, channels: tuple[int, ...]) -> None:
    graph = convolved(qdq, dtype)
    begin, scale = graph.value, graph.scale
    zero, parts = np.iinfo(dtype).min + 130, []
    for number, outputs in enumerate(channels):
        graph.value, graph.scale = begin, scale
        graph.node("Conv", graph.weights(outputs, 6, 1, 1))
        # The first two have the scale of the result.
        parts.append(graph.qdq(0.9 if number < 2 else 1.1, zero).value)
    graph.value = parts[0]
    graph.node("Concat", *parts[1:], axis=1).qdq(0.9, zero)
    # Operands that fill their tiles are written in place.
    end = "+Concat" if channels == (4, 4, 4) else " Concat"
    apart, fused = f"QuantizeLinear{end}".split(), f"QLinearConv+QuantizeLinear{end}".split()
    assert_placed(graph, ["QLinearConv"] * 4 + apart, NO_TABLES)
    assert_placed(graph, ["QLinearConv"] * 3 + fused)


@BOTH
@pytest.mark.parametrize(("shape", "axis"), [((3, 6), 1), ((2, 3, 6), -1), ((2, 6, 5), 1)])
def test_a_concatenation_of_rows_and_of_sequences(
    qdq: Make, dtype: Any, shape: tuple[int, ...], axis: int
) -> None:
    low = np.iinfo(dtype).min
    graph = qdq(shape, dtype).qdq(0.031, low + 120)
    if axis == 1 and len(shape) == 3:
        graph.node("Conv", graph.weights(7, 6, 1, scale=0.02))
    else:
        graph.node("MatMul", graph.weights(6, 7, scale=0.02))
    graph.qdq(0.9, low + 100)
    first = graph.value
    graph.node("Sigmoid").qdq(0.03, low + 90)
    graph.node("Concat", first, axis=axis).qdq(0.83, low + 99)
    if axis == 1 and len(shape) == 3:
        graph.node("Conv", graph.weights(3, 14, 1, scale=0.02))
    else:
        graph.node("MatMul", graph.weights(14, 3, scale=0.02))
    placed = graph.qdq(0.5, low + 101).on_machine()
    assert placed[-2] == "Concat"


@pytest.mark.parametrize("axis", [2, -1])
def test_images_are_concatenated_along_rows_and_columns(qdq: Make, axis: int) -> None:
    graph = convolved(qdq, np.int8)
    branch = graph.value
    graph.conv(6, 6, 1).qdq(0.3, 2).node("Concat", branch, axis=axis).qdq(0.3, 2)
    assert_placed(graph, ["QLinearConv", "QLinearConv", "Concat"])


@BOTH
@pytest.mark.parametrize("value", [None, -1.3])
def test_padding(qdq: Make, dtype: Any, value: float | None) -> None:
    graph = convolved(qdq, dtype)
    pads = [graph.constant([0, 0, 1, 0, 0, 0, 2, 3], np.int64)]
    if value is not None:
        pads.append(graph.constant(value, np.float32))
    zero = np.iinfo(dtype).min + 130
    graph.node("Pad", *pads).qdq(0.3, zero)
    # A convolution would absorb zero padding.
    graph.node("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    assert_placed(graph, ["QLinearConv", "Pad", "MaxPool"])


@BOTH
@pytest.mark.parametrize("own", [{}, {"pads": [1, 0, 0, 2]}, {"auto_pad": "VALID"}])
def test_a_convolution_takes_over_padding_with_zero(
    qdq: Make, dtype: Any, own: dict[str, Any]
) -> None:
    """Keras and PyTorch write asymmetric padding as Pad."""
    graph, zero = convolved(qdq, dtype), np.iinfo(dtype).min + 130
    graph.node("Pad", graph.constant([0, 0, 0, 1, 0, 0, 2, 3], np.int64)).qdq(0.3, zero)
    graph.node("Conv", graph.weights(5, 6, 3, 2), strides=[2, 1], **own).qdq(1.1, zero)
    assert_placed(graph, ["QLinearConv", "QLinearConv"])


RESIZES: list[tuple[list[float], dict[str, Any]]] = [
    ([1, 1, 2, 2], {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
    ([1, 1, 3, 1], {}),
    ([1, 1, 1, 4], {"coordinate_transformation_mode": "half_pixel"}),
]


@BOTH
@pytest.mark.parametrize(("scales", "attributes"), RESIZES)
def test_resizing_to_the_nearest_pixel(
    qdq: Make, dtype: Any, scales: list[float], attributes: Any
) -> None:
    graph = convolved(qdq, dtype)
    graph.node("Resize", "", graph.constant(scales, np.float32), mode="nearest", **attributes)
    graph.qdq(0.3, np.iinfo(dtype).min + 130)
    assert_placed(graph, ["QLinearConv", "Resize"])


def test_a_region_and_scales_without_elements_are_left_out(qdq: Make) -> None:
    graph = convolved(qdq, np.int8)
    empty = [graph.constant(np.zeros(0), np.float32) for _ in range(2)]
    sizes = graph.constant([1, 6, 12, 12], np.int64)
    graph.node("Resize", *empty, sizes, mode="nearest").qdq(0.3, 2)
    assert_placed(graph, ["QLinearConv", "Resize"])


@pytest.mark.parametrize("scales", [(2, 2), (1.5, 1), (0.5, 0.34)])
def test_resizing_that_takes_pixels_unequally_often(qdq: Make, scales: tuple[float, float]) -> None:
    graph = convolved(qdq, np.int8)
    given = graph.constant([1, 1, *scales], np.float32)
    attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil"}
    graph.node("Resize", "", given, mode="nearest", **attributes).qdq(0.3, 2)
    assert_placed(graph, ["QLinearConv", "Resize"])
