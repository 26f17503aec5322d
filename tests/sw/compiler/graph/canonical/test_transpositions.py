"""Networks with channels-last parts between Transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amaranth_vta.session import Session

Make = Callable[..., Any]
LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


@pytest.mark.parametrize("quantized_first", [False, True])
@pytest.mark.parametrize("operator", ["ReduceMean", "ReduceMax"])
@pytest.mark.parametrize("keeps", [0, 1])
def test_transposes_between_layers_vanish(
    qdq: Make, quantized_first: bool, operator: str, keeps: int
) -> None:
    """With and without a quantization between Transpose and Relu."""
    graph = qdq((1, 3, 8, 8)).qdq(2**-5).node("Transpose", perm=LAST)
    for inputs, outputs in ((3, 8), (8, 5)):
        graph.node("Transpose", perm=FIRST).conv(inputs, outputs, pads=[1, 1, 1, 1])
        graph.node("Transpose", perm=LAST)
        if quantized_first:
            graph.qdq(0.9)
        graph.node("Relu").qdq(0.9)
    graph.node(operator, axes=[2, 1], keepdims=keeps).qdq(0.7, -120)
    result = graph.model().graph.output[0].type.tensor_type.shape
    assert [size.dim_value for size in result.dim] == ([1, 1, 1, 5] if keeps else [1, 5])
    assert graph.on_machine()[:2] == ["QLinearConv"] * 2


def test_functions_and_gates_with_channels_last_are_on_images(qdq: Make) -> None:
    """A block of MobileNetV3 as TensorFlow Lite exports it: HardSwish, the average and the gate
    work on channels-last tensors.
    """
    graph = qdq((1, 3, 8, 8)).qdq(2**-5).conv(3, 8).quantize(0.9)
    graph.node("Transpose", perm=LAST).dequantize().node("HardSwish").qdq(0.75, -120)
    image = graph.value
    graph.node("ReduceMean", axes=[1, 2], keepdims=1).quantize(0.1)
    graph.node("Reshape", graph.constant([1, 8, 1, 1], np.int64)).dequantize()
    graph.conv(8, 8, 1).quantize(0.1).node("Reshape", graph.constant([1, 1, 1, 8], np.int64))
    graph.dequantize().node("HardSigmoid").qdq(1 / 128)
    graph.node("Mul", graph.constant(0.9, np.float32)).qdq(1 / 128).node("Mul", image).qdq(0.75)
    graph.node("Add", graph.constant(np.linspace(-3, 3, 8), np.float32)).qdq(0.75)
    graph.node("Transpose", perm=FIRST).conv(8, 5, 1).qdq(0.9)
    assert graph.on_machine() == [
        *("QLinearConv+HardSwish", "QLinearConv", "QLinearConv+HardSigmoid+Mul"),
        *("Resize", "Mul", "Add", "QLinearConv"),
    ]


def test_a_change_of_scale_between_two_transposes_is_of_images(qdq: Make) -> None:
    """The quantizer removed a Relu between the Transposes, and kept the scale of its result."""
    graph = qdq((1, 3, 8, 8)).qdq(0.03).conv(3, 8).qdq(0.9).node("Transpose", perm=LAST)
    graph.qdq(0.53, -128).node("Transpose", perm=FIRST).conv(8, 5, 1).qdq(0.9)
    assert graph.on_machine() == ["QLinearConv+QuantizeLinear", "QLinearConv"]


@pytest.mark.parametrize("operator", ["ReduceMean", "ReduceSum"])
@pytest.mark.parametrize("keeps", [0, 1])
@pytest.mark.parametrize("images", [1, 2])
def test_means_of_tokens_are_averages(qdq: Make, operator: str, keeps: int, images: int) -> None:
    """As in front of the classifier of an encoder."""
    graph = qdq((images, 7, 6)).qdq(0.03)
    graph.node("MatMul", graph.weights(6, 9, scale=0.02)).qdq(0.9)
    if operator == "ReduceSum":
        graph.node(operator, graph.constant([-2], np.int64), keepdims=keeps)
    else:
        graph.node(operator, axes=[1], keepdims=keeps)
    size = 7.3 if operator == "ReduceSum" else 1.0
    graph.qdq(0.1 * size, -20).node("MatMul", graph.weights(9, 9, scale=0.02)).qdq(0.05 * size)
    first, transpose, *rest = graph.on_machine()
    assert (first, transpose, len(rest)) == ("QLinearMatMul", "Transpose", 2)


def test_what_others_read_between_two_transposes_stays(qdq: Make) -> None:
    graph = qdq((1, 6, 8, 5)).qdq(0.03).node("Transpose", perm=FIRST)
    middle = graph.value
    graph.node("Transpose", perm=LAST).node("Transpose", perm=FIRST).conv(5, 5, 1).qdq(0.2)
    graph.node("Add", middle).qdq(0.217)
    with Session(graph.model(), "tiny-extended") as session:
        assert session.check({"x": graph.images()}).ok
        assert [layer.operator for layer in session.layers].count("Transpose") == 2


def test_an_average_that_leaves_axes_out_of_order_is_the_hosts(qdq: Make) -> None:
    """The result has columns before channels."""
    graph = qdq((1, 4, 6, 3)).quantize(0.03).node("Transpose", perm=[0, 3, 2, 1]).dequantize()
    graph.node("ReduceMean", axes=[2], keepdims=0).qdq(0.02)
    with Session(graph.model(), "tiny-extended") as session:
        assert session.check({"x": graph.images()}).ok
        assert "Transpose" in {layer.operator for layer in session.layers}
