"""Element-wise operators fused with the product before them, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amaranth_vta.session import Session

Make = Callable[..., Any]


def operators(graph: Any, config: str = "tiny-extended") -> list[str]:
    """Check the network; return the operators of its layers on the machine."""
    with Session(graph.model(), config) as session:
        report = session.check({"x": graph.images()})
        layers = session.layers
    assert report.histogram == {}
    assert np.unique(report.outputs["y"]).size > 3
    return [item.operator for item in layers if item.placed_on == "machine"]


def biased(graph: Any, inputs: int, outputs: int, scale: float = 0.9) -> Any:
    """Append a product, QuantizeLinear and DequantizeLinear, then the addition of a bias."""
    graph.node("MatMul", graph.weights(inputs, outputs, scale=0.02)).qdq(scale, 3)
    bias = np.random.default_rng(outputs).uniform(-20, 20, outputs)
    return graph.node("Add", graph.constant(bias, np.float32)).qdq(0.8 * scale, -5)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_a_bias_between_quantizations_runs_in_the_product(qdq: Make, dtype: Any) -> None:
    middle = np.iinfo(dtype).min + 128
    graph = qdq((1, 6, 8), dtype).qdq(0.03, middle - 8)
    graph.node("MatMul", graph.weights(8, 20, scale=0.02)).qdq(0.9, middle)
    bias = np.random.default_rng(0).uniform(-20, 20, 20)
    graph.node("Add", graph.constant(bias, np.float32)).qdq(0.8, middle - 8)
    assert operators(graph) == ["QLinearMatMul+Add"]


def test_a_chain_runs_in_the_product(qdq: Make) -> None:
    """Bias, function, falling line per channel, clip, another function."""
    graph = biased(qdq((1, 6, 8)).qdq(0.03), 8, 12).node("Elu").qdq(0.5, 9)
    graph.node("Mul", graph.constant(-np.linspace(0.4, 1.3, 12), np.float32)).qdq(0.3, 2)
    graph.node("Clip", graph.constant(-20, np.float32), graph.constant(18, np.float32))
    graph.qdq(0.2, 1).node("Sigmoid").qdq(0.004, -128)
    (operator,) = operators(graph)
    assert operator.startswith("QLinearMatMul+Add+Elu+Mul+")
    assert operator.endswith("+Sigmoid")


def test_a_residual_addition_follows_a_biased_product(qdq: Make) -> None:
    graph = biased(qdq((1, 6, 8)).qdq(0.03), 8, 8)
    before = graph.value
    biased(graph, 8, 8).node("Add", before).qdq(1.4, 4).node("Tanh").qdq(0.008)
    assert operators(graph) == ["QLinearMatMul+Add", "QLinearMatMul+Add+Add+Tanh"]


def test_a_step_whose_source_has_other_readers_is_a_layer_of_its_own(qdq: Make) -> None:
    graph = qdq((1, 6, 8)).qdq(0.03)
    graph.node("MatMul", graph.weights(8, 8, scale=0.02)).qdq(0.9, 3)
    product = graph.value
    bias = np.random.default_rng(0).uniform(-20, 20, 8)
    graph.node("Add", graph.constant(bias, np.float32)).qdq(0.8, 1)
    graph.node("Mul", product).qdq(2.5)
    assert operators(graph) == ["QLinearMatMul", "Add", "Mul"]


def test_a_function_of_scores_runs_in_their_product(qdq: Make) -> None:
    graph = qdq((1, 6, 8)).qdq(0.03)
    graph.node("MatMul", graph.weights(8, 8, scale=0.02)).qdq(0.9, 3)
    rows = graph.value
    columns, graph.value = graph.node("Transpose", perm=[0, 2, 1]).value, rows
    graph.node("MatMul", columns).qdq(20.0, 4)
    graph.node("Div", graph.constant(8.0, np.float32)).qdq(2.3, 1)
    assert operators(graph) == ["QLinearMatMul", "QLinearMatMul+Div"]


def test_views_of_one_tensor_are_shared(qdq: Make) -> None:
    """Queries, keys and values of one sequence: it is packed once, and one launch runs them."""
    graph = qdq((1, 6, 8)).qdq(0.03)
    given = graph.value
    parts: list[str] = []
    for outputs in (8, 8, 8):
        graph.value = given
        parts.append(biased(graph, 8, outputs, 0.9 + 0.1 * len(parts)).value)
    graph.value = parts[0]
    for part in parts[1:]:
        graph.node("Add", part).qdq(1.5)
    with Session(graph.model(), "tiny-extended") as session:
        report = session.check({"x": graph.images()})
        launches = session.launches
    assert report.histogram == {}
    assert len(launches) == 1
