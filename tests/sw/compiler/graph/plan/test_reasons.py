"""Each reason for averages, functions and products on the host is provoked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper

from amaranth_vta.session import Session

Make = Callable[..., Any]


def reason(graph: Any, operator: str, opset: int = 17) -> str:
    """Check the network; return the reason why the first ``operator`` is on the host."""
    with Session(graph.model(opset), "tiny") as session:
        assert session.check({"x": graph.images()}).ok
        return next(layer.reason for layer in session.layers if layer.operator == operator)


def convolution(qdq: Make) -> Any:
    return qdq((1, 3, 8, 8)).qdq(2**-5).conv(3, 5).qdq(2**-3)


def test_averages_that_are_not_quantized_are_the_hosts(qdq: Make) -> None:
    graph = convolution(qdq).node("GlobalAveragePool").node("Sin")
    wanted = "its result is not quantized to 8 bits at one scale"
    assert reason(graph, "GlobalAveragePool") == wanted
    graph = convolution(qdq).node("Sin").node("GlobalAveragePool")
    operand = graph.nodes[-1].input[0]
    assert reason(graph, "GlobalAveragePool") == f"its operand {operand} is in float"


@pytest.mark.parametrize(
    ("operator", "attributes", "wanted"),
    [
        ("ReduceMean", {"axes": [1]}, "it goes over other axes than rows and columns"),
        ("AveragePool", {"kernel_shape": [2, 2], "dilations": [2, 2]}, "its window is dilated"),
    ],
)
def test_other_averages_are_the_hosts(
    qdq: Make, operator: str, attributes: Any, wanted: str
) -> None:
    graph = convolution(qdq).node(operator, **attributes)
    opset = 19 if "dilations" in attributes else 17
    assert reason(graph.qdq(2**-3), operator, opset) == wanted


def test_functions_of_what_is_in_float_are_the_hosts(qdq: Make) -> None:
    graph = convolution(qdq).node("Softmax")
    operand = graph.value
    graph.nodes.append(helper.make_node("Sub", [graph.constant(1, np.float32), operand], ["s"]))
    graph.value = "s"
    assert reason(graph.qdq(2**-3), "Sub") == f"its operand {operand} is in float"


@pytest.mark.parametrize("operator", ["Add", "Sigmoid"])
def test_what_follows_a_product_that_nothing_quantizes_is_the_hosts(
    qdq: Make, operator: str
) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(2**-5)
    branch = [graph.value] if operator == "Add" else []
    graph.conv(3, 3, 1)
    wanted = f"its operand {graph.value} is a product's result, which nothing quantizes"
    assert reason(graph.node(operator, *branch).qdq(2**-3), operator) == wanted


def test_transposed_convolutions_whose_result_stays_in_float_are_the_hosts(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(2**-5)
    graph.node("ConvTranspose", graph.weights(3, 4, 2, 2), strides=[2, 2]).node("Sin")
    wanted = "ConvTranspose is in float: Sin follows, and nothing quantizes in between"
    assert reason(graph, "ConvTranspose") == wanted
