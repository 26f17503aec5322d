"""Functions of one tensor and products of two, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper

from amaranth_vta.session import Session
from tests.support.seeds import each_seed

Make = Callable[..., Any]
BOTH = pytest.mark.parametrize("dtype", [np.int8, np.uint8])


def placed(graph: Any, config: str = "tiny-extended") -> dict[str, str]:
    """Check the network; for each operator, return ``machine`` or the reason why it is on the
    host."""
    with Session(graph.model(), config) as session:
        report = session.check({"x": graph.images()})
        layers = session.layers
    assert report.histogram == {}
    assert np.unique(report.outputs["y"]).size > 2
    quantizations = {"QuantizeLinear", "DequantizeLinear", "layout"}
    return {
        item.operator: item.reason or "machine"
        for item in layers
        if item.operator not in quantizations
    }


def random_function(graph: Any, rng: np.random.Generator, channels: int, per: str) -> str:
    """Adds one to three operators with constants; returns the last one."""
    operator = ""
    for _ in range(rng.integers(1, 4)):
        operator = str(rng.choice(["Add", "Sub", "Mul", "Div"]))
        shape = {"tensor": (), "channel": (1, channels, 1, 1), "short": (channels, 1, 1)}[per]
        values = rng.uniform(0.3, 1.7, shape) * rng.choice([-1, 1])
        constant = graph.constant(values, np.float32)
        if rng.random() < 0.3 and operator != "Div":
            graph.nodes.append(_node(operator, [constant, graph.value], len(graph.nodes)))
            graph.value = graph.nodes[-1].output[0]
        else:
            graph.node(operator, constant)
    return operator


def _node(operator: str, inputs: list[str], number: int) -> Any:
    name = f"{operator.lower()}{number}"
    return helper.make_node(operator, inputs, [name], name=name)


def test_a_line_whose_addend_has_to_be_finer_than_127_steps_is_on_the_machine(qdq: Make) -> None:
    """The second channel's weight is split into a sum of two."""
    graph = qdq((1, 2, 16, 16), np.uint8).qdq(0.026435840874910355, 168)
    addends = graph.constant([[[0.5]], [[1.3217417001724243]]], np.float32)
    graph.node("Add", addends).qdq(0.019531767815351486, 90)
    assert placed(graph) == {"Add": "machine"}


@BOTH
@pytest.mark.parametrize("per", ["tensor", "channel", "short"])
@each_seed(range(6))
def test_sums_and_products_with_constants_are_exact(seed: int, per: str, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    middle = 0 if dtype is np.int8 else 128
    graph = qdq_of((1, 5, 4, 3), dtype).qdq(rng.uniform(0.01, 0.04), middle + 3)
    last = random_function(graph, rng, 5, per)
    if rng.random() < 0.5:
        last = "Relu"
        graph.node("Relu")
    graph.qdq(rng.uniform(0.01, 0.05), middle + rng.integers(-60, 60))
    assert placed(graph) == {last: "machine"}


def qdq_of(shape: tuple[int, ...], dtype: Any) -> Any:
    from tests.sw.compiler.graph.conftest import Qdq

    return Qdq(shape, dtype)


@BOTH
def test_a_constant_of_each_feature_of_rows(qdq: Make, dtype: Any) -> None:
    graph = qdq((2, 6, 20), dtype).qdq(0.031, np.iinfo(dtype).min + 100)
    graph.node("Add", graph.constant(graph.rng.normal(0, 1, 20), np.float32)).qdq(0.043, 9)
    assert placed(graph) == {"Add": "machine"}


def test_a_constant_of_each_element_is_an_operand(qdq: Make) -> None:
    graph = qdq((1, 6, 20)).qdq(0.031, 4)
    graph.node("Add", graph.weights(1, 6, 20, scale=0.017)).qdq(0.0438, 9)
    assert placed(graph) == {"Add": "machine"}


def test_on_the_base_machine_constants_are_of_a_tensor(qdq: Make) -> None:
    graph = qdq((1, 5, 4, 3)).qdq(0.031)
    graph.node("Mul", graph.constant(0.7, np.float32))
    assert placed(graph.qdq(0.02, 3), "tiny") == {"Mul": "machine"}
    graph = qdq((1, 5, 4, 3)).qdq(0.031)
    graph.node("Mul", graph.constant(graph.rng.normal(0, 1, (5, 1, 1)), np.float32)).qdq(0.02, 3)
    assert placed(graph, "tiny")["Mul"] == (
        "Mul of one tensor: it differs from channel to channel, and the machine has no REQUANTIZE"
    )


@pytest.mark.parametrize(("factor", "scale"), [(0.5, 1.0), (1.0, 2.0), (0.25, 0.5), (1.5, 1.0)])
def test_ties_are_rounded_to_even(qdq: Make, factor: float, scale: float) -> None:
    for shape in ((), (5, 1, 1)):
        for zero in (2, 3):
            graph = qdq((1, 5, 4, 3)).qdq(2**-5, 1)
            graph.node("Mul", graph.constant(np.full(shape, factor), np.float32))
            assert placed(graph.qdq(2**-5 * scale, zero)) == {"Mul": "machine"}


def test_a_dead_and_a_steep_channel(qdq: Make) -> None:
    graph = qdq((1, 5, 4, 3)).qdq(0.031, 1)
    factors = graph.constant(np.array([0, 1e-9, 900, -1, 0.3]).reshape(5, 1, 1), np.float32)
    assert placed(graph.node("Mul", factors).qdq(0.0413, 2)) == {"Mul": "machine"}


def test_straight_lines_between_bounds(qdq: Make) -> None:
    for operator in ("HardSigmoid", "Neg"):
        graph = qdq((1, 5, 4, 3)).qdq(0.031, 1).node(operator)
        assert placed(graph.qdq(0.0131, 2)) == {operator: "machine"}


def test_batch_normalization_by_itself(qdq: Make) -> None:
    graph = qdq((1, 5, 4, 3)).qdq(0.031, 1)
    given = [graph.constant(graph.rng.uniform(0.4, 1.2, 5), np.float32) for _ in range(4)]
    graph.node("BatchNormalization", *given).node("Relu").qdq(0.017, -60)
    assert placed(graph) == {"Relu": "machine"}


def test_without_tables_other_functions_are_the_hosts(qdq: Make) -> None:
    graph = qdq((1, 5, 4, 3)).qdq(0.031, 1)
    branch = graph.value
    graph.node("Sigmoid").node("Mul", branch).qdq(0.021, 2)
    reason = (
        "Sigmoid, Mul of one tensor: it is not a straight line between two bounds, and the machine "
        "has no LOOKUP"
    )
    assert placed(graph, "tiny") == {"Sigmoid": reason, "Mul": reason}
    graph = qdq((1, 5, 4, 3)).qdq(0.031, 1).node("Sigmoid")
    factors = graph.constant(graph.rng.uniform(0.5, 2, (5, 1, 1)), np.float32)
    reason = placed(graph.node("Mul", factors).qdq(0.021, 2))["Mul"]
    assert reason.endswith("in channel 0, and LOOKUP has one table for all channels")


@BOTH
@pytest.mark.parametrize(
    "operator",
    [
        *("Sigmoid", "Tanh", "Erf", "Exp", "Elu", "HardSwish", "LeakyRelu", "Softplus", "Abs"),
        *("Celu", "Selu", "Softsign", "Sin", "Reciprocal", "HardSigmoid"),
    ],
)
def test_functions_are_looked_up(qdq: Make, operator: str, dtype: Any) -> None:
    middle = 0 if dtype is np.int8 else 128
    graph = qdq((2, 5, 4, 3), dtype).qdq(0.031, middle + 1).node(operator)
    assert placed(graph.qdq(0.0173, middle - 20)) == {operator: "machine"}


def test_a_product_with_a_function_of_the_other_factor_is_looked_up(qdq: Make) -> None:
    """SiLU, as quantizers write it: the sigmoid is quantized, too."""
    graph = qdq((1, 5, 4, 3)).qdq(0.031, 1)
    branch = graph.value
    graph.node("Sigmoid").qdq(1 / 256, -128).node("Mul", branch)
    assert placed(graph.qdq(0.021, -100)) == {"Mul": "machine"}
    # GELU, as exporters write it.
    graph = qdq((1, 5, 4, 3)).qdq(0.031, 1)
    branch = graph.value
    graph.node("Div", graph.constant(np.sqrt(2), np.float32)).node("Erf")
    graph.node("Add", graph.constant(1, np.float32)).node("Mul", branch)
    graph.node("Mul", graph.constant(0.5, np.float32)).qdq(0.021, -100)
    assert placed(graph) == {"Mul": "machine"}


def silu(graph: Any, zero_point: int) -> Any:
    branch = graph.value
    return graph.node("Sigmoid").qdq(1 / 256, -128).node("Mul", branch).qdq(0.021, zero_point)


def test_a_function_runs_in_the_layer_of_the_product_before_it(qdq: Make) -> None:
    graph = qdq((1, 5, 6, 5)).qdq(0.031, 1)
    silu(graph.node("Conv", graph.weights(6, 5, 3, 3, scale=0.01)).qdq(0.0317, -7), -110)
    graph.node("Conv", graph.weights(6, 1, 3, 3, scale=0.02), group=6).qdq(0.0217, -9)
    graph.node("Tanh").qdq(1 / 128, 0)
    assert placed(graph) == {"QLinearConv+Mul": "machine", "QLinearConv+Tanh": "machine"}
    graph = qdq((1, 4, 20)).qdq(0.031, 1)
    graph.node("MatMul", graph.weights(20, 7, scale=0.01)).qdq(0.0317, -7)
    graph.node("Elu").qdq(0.02, -100)
    assert placed(graph) == {"QLinearMatMul+Elu": "machine"}


def test_an_addition_and_a_function_run_in_one_layer_with_their_convolution(qdq: Make) -> None:
    """A residual block with SiLU."""
    graph = qdq((1, 16, 16, 16)).qdq(0.031, 1)
    graph.node("Conv", graph.weights(16, 16, 1, 1, scale=0.01)).qdq(0.0317, -7)
    silu(graph, -110)
    branch = graph.value
    graph.node("Conv", graph.weights(16, 16, 3, 3, scale=0.01), pads=[1] * 4).qdq(0.0317, -7)
    silu(graph, -105).node("Add", branch).qdq(0.0373, -60)
    layers = placed(graph, "pynq-extended")
    assert set(layers.values()) == {"machine"}
    assert "QLinearConv+Mul" in layers


def test_a_change_of_scale_behind_a_function_takes_no_layer_of_its_own(qdq: Make) -> None:
    for dtype in (np.int8, np.uint8):
        middle = 0 if dtype is np.int8 else 128
        graph = qdq((1, 5, 6, 5), dtype).qdq(0.031, middle + 1)
        graph.node("Conv", graph.weights(6, 5, 3, 3, scale=0.01)).qdq(0.0317, middle - 7)
        graph.node("Tanh").qdq(1 / 128, middle).qdq(1 / 100, middle + 3)
        assert placed(graph) == {"QLinearConv+Tanh+QuantizeLinear": "machine"}


def test_functions_in_succession_take_one_layer(qdq: Make) -> None:
    """Quantizers insert QuantizeLinear after each Mul and Add, as in a HardSwish made of elementary
    operators.
    """
    graph = qdq((1, 5, 6, 5)).qdq(0.031, 1).node("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    graph.node("Mul", graph.constant(0.7, np.float32)).qdq(0.03, 3)
    graph.node("Sigmoid").qdq(1 / 128).node("Add", graph.constant(0.3, np.float32)).qdq(1 / 99, -9)
    assert placed(graph) == {"MaxPool": "machine", "Mul+Sigmoid+Add": "machine"}


def test_a_constant_that_several_functions_read_is_quantized_once(qdq: Make) -> None:
    graph = qdq((1, 5, 6, 5)).qdq(0.031, 1)
    data, scale = graph.constant(3 * 40, np.int8), graph.constant(1 / 40, np.float32)
    graph.nodes.append(helper.make_node("DequantizeLinear", [data, scale], ["three"]))
    for count in (4, 6):
        graph.node("Conv", graph.weights(count, 5 if count == 4 else 4, 1, 1, scale=0.02))
        before = graph.qdq(0.03, 5).value
        graph.node("Add", "three").qdq(0.03, -100).node("Mul", before).qdq(0.05, -90)
    assert placed(graph) == {"QLinearConv+Mul": "machine"}


def test_what_others_read_too_is_not_fused(qdq: Make) -> None:
    graph = qdq((1, 5, 6, 5)).qdq(0.031, 1)
    graph.node("Conv", graph.weights(6, 5, 3, 3, scale=0.01)).qdq(0.0317, -7)
    branch = graph.value
    graph.node("Sigmoid").qdq(1 / 256, -128)
    other = graph.value
    graph.value = branch
    graph.node("MaxPool", kernel_shape=[1, 1]).node("Mul", other)
    layers = placed(graph.qdq(0.021, -110))
    assert layers["QLinearConv"] == layers["Sigmoid"] == "machine"


def test_a_sum_with_a_function_of_the_other_term_is_looked_up(qdq: Make) -> None:
    graph = qdq((1, 5, 4, 3)).qdq(0.031, 1)
    branch = graph.value
    graph.node("Tanh").qdq(1 / 128, 0).node("Add", branch).node("Relu")
    assert placed(graph.qdq(0.021, -100)) == {"Add": "machine"}


@BOTH
@each_seed(range(6))
def test_products_of_two_tensors_are_exact(seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    middle = 0 if dtype is np.int8 else 128
    graph = qdq_of((1, 5, 4, 3), dtype).qdq(rng.uniform(0.01, 0.04), middle + 3)
    branch = graph.value
    graph.node("Conv", graph.weights(5, 5, 1, 1, scale=0.01)).qdq(0.0317, middle - 7)
    graph.node("Mul", branch)
    if seed % 2:
        graph.node("Relu")
    graph.qdq(rng.uniform(0.005, 0.02), middle + rng.integers(-60, 60))
    assert placed(graph) == {"QLinearConv": "machine", "Mul": "machine"}
