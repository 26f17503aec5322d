"""QLinearConcat against the original model, and gates of one value per channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper

from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session

Make = Callable[..., Any]
BOTH = pytest.mark.parametrize("dtype", [np.int8, np.uint8])


def microsoft(graph: Any, operator: str, inputs: list[str], **attributes: Any) -> Any:
    """Append an operator on integers to a graph, and a DequantizeLinear of its result."""
    graph.nodes.append(
        helper.make_node(operator, inputs, ["made"], domain="com.microsoft", **attributes)
    )
    graph.value = "made"
    return graph


def checked(graph: Any) -> list[str]:
    """The operators on the machine, after checking that results equal the original model's."""
    model, x = graph.model(), graph.images()
    with Session(model, "tiny-extended") as session:
        report = session.check({"x": x})
        layers = session.layers
    assert report.histogram == {}
    (want,) = exact_session(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(report.outputs["y"], want)
    assert np.unique(want).size > 3
    return [layer.operator for layer in layers if layer.placed_on == "machine"]


@BOTH
def test_a_concatenation_brings_its_operands_to_one_scale(qdq: Make, dtype: Any) -> None:
    middle = 0 if dtype is np.int8 else 128
    graph = qdq((1, 4, 5, 6), dtype).quantize(2**-5, middle)
    first = graph.value
    graph.dequantize(middle).node("Conv", graph.weights(4, 4, 1, 1)).quantize(2**-3, middle + 3)
    scales = [graph.constant(value, np.float32) for value in (2**-4, 2**-5, 2**-3)]
    zeros = [graph.constant(middle + value, dtype) for value in (1, 0, 3)]
    inputs = [scales[0], zeros[0], first, scales[1], zeros[1], graph.value, scales[2], zeros[2]]
    microsoft(graph, "QLinearConcat", inputs, axis=1)
    graph.scale = 2**-4
    operators = checked(graph.dequantize(middle + 1))
    # Fused with the convolution, by a table.
    assert operators[0] == "QLinearConv+QuantizeLinear"


@BOTH
@pytest.mark.parametrize("operator", ["Mul", "Add"])
def test_a_pixel_is_repeated_over_an_image(qdq: Make, operator: str, dtype: Any) -> None:
    middle = 0 if dtype is np.int8 else 128
    graph = qdq((1, 4, 5, 6), dtype).qdq(0.031, middle + 1)
    image = graph.value
    graph.node("GlobalAveragePool").qdq(0.0113, middle)
    graph.node("Conv", graph.weights(4, 4, 1, 1, scale=0.013)).qdq(0.0317, middle)
    graph.node("HardSigmoid")
    graph.qdq(0.0041, middle).node(operator, image).qdq(0.0297, middle + 7)
    with Session(graph.model(), "tiny-extended") as session:
        report = session.check({"x": graph.images()})
        layers = session.layers
    assert report.histogram == {}
    assert {item.operator for item in layers if item.placed_on == "host"} <= {
        *("QuantizeLinear", "DequantizeLinear", "layout")
    }


@BOTH
@pytest.mark.parametrize("odd", [0, 1])
def test_an_average_of_integers_is_one_between_quantizations(
    qdq: Make, dtype: Any, odd: int
) -> None:
    """Averages include ties, which ONNX Runtime rounds to even after adding the zero point."""
    middle = 0 if dtype is np.int8 else 128
    graph = qdq((1, 4, 6, 6), dtype).quantize(2**-5, middle)
    scale, zero = graph.constant(2**-5, np.float32), graph.constant(middle, dtype)
    out = [graph.constant(2**-6, np.float32), graph.constant(middle + 2 + odd, dtype)]
    pool = {"kernel_shape": [2, 4], "strides": [2, 1]}
    microsoft(graph, "QLinearAveragePool", [graph.value, scale, zero, *out], **pool)
    graph.scale = 2**-6
    assert checked(graph.dequantize(middle + 2 + odd)) == ([] if odd else ["QLinearConv"])
