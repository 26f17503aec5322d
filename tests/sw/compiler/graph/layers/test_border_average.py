"""Average pools whose windows count fewer pixels at the border."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper

from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session

Make = Callable[..., Any]
POOLS: list[dict[str, Any]] = [
    {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [3, 2], "pads": [0, 1, 2, 1], "strides": [2, 1]},
    {"kernel_shape": [4, 3], "auto_pad": "SAME_LOWER", "strides": [1, 2]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0], "strides": [4, 3]},
]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("relu", [False, True])
def test_they_are_one_layer(qdq: Make, pool: dict[str, Any], dtype: Any, relu: bool) -> None:
    low = np.iinfo(dtype).min
    graph = qdq((2, 3, 8, 6), dtype).qdq(0.031, low + 120).conv(3, 6, 1).qdq(0.11, low + 77)
    graph.node("AveragePool", **pool)
    if relu:
        graph.node("Relu")
    assert graph.qdq(0.043, low + 100).on_machine() == ["QLinearConv", "AveragePool"]


def test_each_average_is_that_of_its_pixels(qdq: Make) -> None:
    """Compares with the original file, whose float sums are exact for these numbers."""
    graph = qdq((1, 3, 5, 7)).qdq(2**-4, 3).node("AveragePool", **POOLS[0]).qdq(2**-5, 30)
    model, x = graph.model(), graph.images()
    with Session(model, "tiny-extended") as session:
        report = session.check({"x": x})
        placed = [layer.operator for layer in session.layers if layer.placed_on == "machine"]
    assert report.ok
    assert placed == ["AveragePool"]
    (want,) = exact_session(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(report.outputs["y"], want)


def test_a_choice_between_other_averages_is_the_hosts(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(2**-4)
    names = []
    for size in (1, 3):
        pads = [size // 2] * 4
        attributes: Any = {"kernel_shape": [size] * 2, "pads": pads, "count_include_pad": 1}
        names += [f"average{size}", f"quantized{size}"]
        parameters = [graph.constant(2**-4, np.float32), graph.constant(0, np.int8)]
        graph.nodes += [
            helper.make_node("AveragePool", [graph.value], names[-2:-1], **attributes),
            helper.make_node("QuantizeLinear", [names[-2], *parameters], names[-1:]),
        ]
    mask = graph.constant(np.eye(8)[None, None] > 0)
    graph.nodes.append(helper.make_node("Where", [mask, names[1], names[3]], ["chosen"]))
    graph.value = "chosen"
    with Session(graph.dequantize().model(), "tiny-extended") as session:
        assert session.check({"x": graph.images()}).ok
        reasons = {layer.reason for layer in session.layers if layer.operator == "QLinearConv"}
    assert reasons == {
        "it chooses from averages of different windows",
        "other windows of this average are on the host",
    }


def test_without_requantize_they_are_the_hosts(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 6)).qdq(2**-4).node("AveragePool", **POOLS[0]).qdq(2**-4)
    with Session(graph.model(), "tiny") as session:
        assert session.check({"x": graph.images()}).ok
        reasons = {layer.reason for layer in session.layers if layer.operator == "QLinearConv"}
    assert reasons == {
        "its windows at the border count fewer pixels, and the machine has no REQUANTIZE"
    }
