"""Factors per channel after a convolution, against the file itself. All numbers are powers of two,
so that float sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper

from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session

Make = Callable[..., Any]
SIGNS = [1, -1, 2, 0.5, -0.25, 1, 4]


def normalized(graph: Any) -> None:
    beta, mean = [1, -2, 0.5, 0, 1, 4, -1], [0.5, 1, -1, 0, 2, 0.25, -2]
    parameters = (SIGNS, beta, mean, [1, 4, 0.25, 16, 1, 1, 4])
    names = [graph.constant(value, np.float32) for value in parameters]
    graph.node("BatchNormalization", *names, epsilon=0.0)


def multiplied(graph: Any) -> None:
    graph.node("Mul", graph.constant(np.reshape(SIGNS, (7, 1, 1)), np.float32))


def constant_first(graph: Any) -> None:
    factor = graph.constant(np.reshape(SIGNS, (1, 7, 1, 1)), np.float32)
    graph.nodes.append(helper.make_node("Mul", [factor, graph.value], ["scaled"]))
    graph.value = "scaled"
    graph.node("Add", graph.constant(-0.5, np.float32))


def normalized_and_multiplied(graph: Any) -> None:
    normalized(graph)
    multiplied(graph)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "factors", [normalized, multiplied, constant_first, normalized_and_multiplied]
)
def test_they_are_in_weights_and_bias(
    qdq: Make, dtype: Any, bias: bool, factors: Callable[[Any], None]
) -> None:
    low = np.iinfo(dtype).min
    graph = qdq((1, 4, 6, 6), dtype).qdq(2**-5, low + 100)
    if bias:
        graph.conv(4, 7)
    else:
        graph.node("Conv", graph.weights(7, 4, 3, 3, scale=2.0 ** -np.arange(4, 11)))
    factors(graph)
    model, x = graph.node("Relu").qdq(2**-3, low).model(), graph.images()
    with Session(model, "tiny-extended") as session:
        report = session.check({"x": x})
        placed = [layer.operator for layer in session.layers if layer.placed_on == "machine"]
    assert placed == ["QLinearConv"]
    (want,) = exact_session(model.SerializeToString()).run(None, {"x": x})
    assert report.histogram == {}
    np.testing.assert_array_equal(report.outputs["y"], want)
    assert np.unique(want).size > 3


@pytest.mark.parametrize("constant", [np.zeros((7, 1, 1)), np.ones((7, 4, 4))])
def test_factors_of_zero_or_that_differ_within_a_channel_stay(qdq: Make, constant: Any) -> None:
    graph = qdq((1, 4, 6, 6)).qdq(2**-5).conv(4, 7)
    model = graph.node("Mul", graph.constant(constant, np.float32)).qdq(2**-3).model()
    with Session(model, "tiny-extended") as session:
        assert session.check({"x": graph.images()}).ok
        assert "ConvInteger" in [layer.operator for layer in session.layers]


@pytest.mark.parametrize("scale", [0.0, 1e-10, 1e-30])
@pytest.mark.parametrize(
    ("operator", "attributes"), [("Conv", {}), ("ConvTranspose", {"strides": [2, 1]})]
)
def test_a_bias_outlives_weights_that_are_nearly_dead(
    qdq: Make, operator: str, attributes: Any, scale: float
) -> None:
    """The bias of one channel is 1, which in units of its scale exceeds int32."""
    graph = qdq((1, 16, 4, 4)).qdq(2**-5)
    scales = np.full(16, 2**-6, np.float32)
    scales[3] = scale
    bias = graph.constant(np.full(16, 1, np.float32))
    weights = graph.weights(16, 16, 1, 1, scale=scales, axis=int(operator != "Conv"))
    graph = graph.node(operator, weights, bias, **attributes).qdq(2**-5)
    model, images = graph.model(), graph.images()
    with Session(model, "tiny-extended") as session:
        report = session.check({"x": images})
        on_machine = session.macs > 0
    assert report.ok
    np.testing.assert_array_equal(report.outputs["y"][:, 3], 1)
    assert on_machine or (operator, scale) == ("ConvTranspose", 0)


@pytest.mark.parametrize("scale", [0.0, -(2**-5)])
def test_a_scale_that_is_not_positive_stays_in_float(qdq: Make, scale: float) -> None:
    graph = qdq((1, 4, 6, 6)).qdq(2**-5).conv(4, 4).node("Relu").qdq(scale)
    graph = graph.node("MaxPool", kernel_shape=[2, 2]).qdq(scale)
    model, images = graph.model(), graph.images()
    with Session(model, "tiny-extended") as session:
        report = session.check({"x": images})
    assert report.ok
    expected = exact_session(model.SerializeToString()).run(["y"], {"x": images})
    np.testing.assert_array_equal(report.outputs["y"], expected[0])
