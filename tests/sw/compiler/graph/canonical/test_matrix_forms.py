"""Matrix products in other forms, against the original file. Scales are powers of two, so that
float sums are exact.
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


def gemm(graph: Any) -> None:
    weights = graph.weights(6, 9)
    bias = graph.constant(graph.rng.integers(-40, 40, 9) * 2.0**-5, np.float32)
    graph.node("Gemm", weights, bias, transA=1, alpha=0.5, beta=2.0)


def vector_first(graph: Any) -> None:
    graph.node("MatMul", graph.weights(6, 9))


def vector_second(graph: Any) -> None:
    graph.node("MatMul", graph.weights(6))


def matrix_first(graph: Any) -> None:
    weights, given = graph.weights(9, 6), graph.value
    graph.value = weights
    graph.node("MatMul", given)


def added(graph: Any) -> None:
    """Append a MatMul, and a bias with one axis more than its result."""
    bias = graph.constant(graph.rng.integers(-40, 40, (1, 1, 9)) * 2.0**-5, np.float32)
    graph.node("MatMul", graph.weights(6, 9)).node("Add", bias)


def scalar_added(graph: Any) -> None:
    graph.node("Gemm", graph.weights(6, 9), graph.constant(0.5, np.float32))


CASES: list[tuple[Callable[[Any], None], tuple[int, ...]]] = [
    (gemm, (6, 4)),
    (vector_first, (6,)),
    (vector_second, (4, 6)),
    (vector_second, (2, 4, 6)),
    (added, (4, 6)),
    (scalar_added, (4, 6)),
    (matrix_first, (6, 5)),
    (matrix_first, (2, 3, 6, 5)),
]


@pytest.mark.parametrize(("product", "shape"), CASES)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_products_in_other_forms_are_on_the_machine(
    qdq: Make, product: Callable[[Any], None], shape: tuple[int, ...], dtype: Any
) -> None:
    low = np.iinfo(dtype).min
    graph = qdq(shape, dtype).qdq(2**-5, low + 100)
    product(graph)
    graph.qdq(2**-2, low + 130)
    model, x = graph.model(), graph.images()
    with Session(model, "pynq-extended") as session:
        report = session.check({"x": x})
        assert session.report()["summary"]["share_on_machine"] == 1
    (want,) = exact_session(model.SerializeToString()).run(None, {"x": x})
    assert report.histogram == {}
    np.testing.assert_array_equal(report.outputs["y"], want)
    assert np.unique(want).size > 3


STACKS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((2, 3, 4, 5), (2, 1, 5, 6)),
    ((2, 3, 4, 5), (1, 1, 5, 6)),
    ((2, 3, 4, 5), (3, 5, 6)),
    ((3, 1, 4, 5), (1, 2, 5, 6)),
    ((4, 5), (2, 5, 6)),
    ((2, 4, 5), (1, 1, 5, 6)),
]


@pytest.mark.parametrize(("first", "second"), STACKS)
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("quantized", [True, False])
def test_stacks_that_are_repeated_for_one_another_are_on_the_machine(
    qdq: Make, first: tuple[int, ...], second: tuple[int, ...], constant: bool, quantized: bool
) -> None:
    """For instance where all heads of a group share keys and values."""
    graph = qdq(first).qdq(2**-5)
    given, total = graph.value, int(np.prod(second))
    if constant:
        other = graph.weights(*second)
    else:
        graph.value = "x"
        graph.node("Reshape", graph.constant([-1], np.int64))
        times = graph.constant([total // int(np.prod(first)) + 1], np.int64)
        graph.node("Tile", times).node("Slice", *(graph.constant([n]) for n in (0, total)))
        other = graph.node("Reshape", graph.constant(second, np.int64)).qdq(2**-5).value
    graph.value = given
    graph.node("MatMul", other)
    if quantized:
        graph.qdq(2**-3)
    with Session(graph.model(), "tiny-extended") as session:
        assert session.check({"x": graph.images()}).ok
        assert session.report()["summary"]["share_on_machine"] == 1


@pytest.mark.parametrize("shape", [(4, 9), (9, 1)])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_a_bias_that_differs_from_row_to_row_is_the_hosts(
    qdq: Make, shape: tuple[int, int], form: str
) -> None:
    graph = qdq((shape[0], 6)).qdq(2**-5, 9)
    if form == "QDQ":
        bias = graph.constant(graph.rng.integers(-40, 40, shape) * 2.0**-5, np.float32)
        graph.node("Gemm", graph.weights(6, 9), bias).qdq(2**-2)
    else:
        zero, scale = graph.constant(0, np.int8), graph.constant(2**-6, np.float32)
        weights = graph.constant(graph.rng.integers(-9, 9, (6, 9)), np.int8)
        bias = graph.constant(graph.rng.integers(-99, 99, shape), np.int32)
        result = graph.constant(2**-3, np.float32)
        graph.nodes.pop()
        graph.value = graph.nodes[-1].output[0]
        of_input = [graph.constant(2**-5, np.float32), graph.constant(9, np.int8)]
        graph.node("QGemm", *of_input, weights, scale, zero, bias, result, zero)
        graph.nodes[-1].domain = "com.microsoft"
        graph.dequantize()
    with Session(graph.model(), "pynq-extended") as session:
        assert session.check({"x": graph.images()}).ok
        # ONNX's own operators add the bias in float, after the sums.
        assert session.report()["summary"]["share_on_machine"] == (form == "QDQ")


@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("first", [0, 1])
def test_a_product_of_two_types_is_one_of_integers(qdq: Make, first: int, quantized: bool) -> None:
    graph = qdq((2, 4, 4)).qdq(2**-5, 3)
    factors = [graph.value, "unsigned"]
    parameters = [graph.constant(2**-6, np.float32), graph.constant(100, np.uint8)]
    graph.nodes += [
        helper.make_node("QuantizeLinear", ["x", *parameters], ["u"]),
        helper.make_node("DequantizeLinear", ["u", *parameters], ["unsigned"]),
    ]
    graph.value = factors[first]
    graph.node("MatMul", factors[1 - first])
    model = (graph.qdq(2**-3, 5) if quantized else graph).model()
    with Session(model, "tiny-extended") as session:
        assert session.check({"x": graph.images()}).ok
        assert session.macs == 2 * 4 * 4 * 4
