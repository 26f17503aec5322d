"""Rotary position embeddings in integers: machine and ONNX Runtime agree in every element, and with
the float operators in all but a few.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.layers import rotation as lowering
from amaranth_vta.sw.compiler.operators.rotation import rotation_matrices
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from tests.support.rotations import (
    ORDERS,
    SUMS,
    WAVES,
    integer_rotation,
    qdq_rotation,
    random_inputs,
)

# Operators that convert positions to factors; the host runs them.
CONVERSIONS = {"Gather", "Cast", "Unsqueeze", "Mul", "Concat", "Cos", "Sin", "Round", "Clip"}


def compared(
    model: onnx.ModelProto, device: str = "functional", config: str = "pynq-extended"
) -> tuple[int, dict[str, str]]:
    """The number of elements that differ from ONNX Runtime, and the operators on the host, with
    reasons, besides `CONVERSIONS`.
    """
    with Session(model, config, device=device) as session:
        report = session.check(random_inputs(model, 1))
        on_host = {layer.operator: layer.reason for layer in session.layers if layer.reason}
        return report.mismatches, {
            operator: reason for operator, reason in on_host.items() if operator not in CONVERSIONS
        }


@pytest.mark.parametrize("waves", WAVES)
@pytest.mark.parametrize("shape", [(1, 6, 1, 48), (2, 5, 16), (3, 2, 70, 64)])
def test_machine_and_onnx_runtime_agree(shape: tuple[int, ...], waves: str) -> None:
    assert compared(integer_rotation(shape, waves)) == (0, {})


@pytest.mark.parametrize("total", SUMS)
@pytest.mark.parametrize("order", ORDERS)
def test_forms_of_exporters_are_found(order: str, total: str) -> None:
    assert compared(integer_rotation(order=order, total=total)) == (0, {})


@pytest.mark.parametrize(
    "options",
    [
        {"zeros": (0, 7)},
        {"scaling": 1.3},
        {"scaling": 1.3, "waves": "computed"},
        {"scales": (0.05, 0.012)},  # most results are clipped
    ],
)
def test_other_scales_and_zero_points(options: dict[str, Any]) -> None:
    assert compared(integer_rotation(**options)) == (0, {})


def after_a_product(tokens: int, heads: int) -> onnx.ModelProto:
    """A rotation of the result of a product, brought to the order of heads."""
    model = integer_rotation((1, heads, tokens, 32))
    width = heads * 32
    before = parser.parse_graph(f"""g (int8[{tokens}, 64] u) => (int8[1, {heads}, {tokens}, 32] xi)
        <float us = {{0.05}}, int8 uz = {{0}}, float ws = {{0.003}}, int8 wz = {{0}},
         float ms = {{0.0517}}, int8 mz = {{0}}, int64[4] split = {{1, {tokens}, {heads}, 32}}> {{
            m = QLinearMatMul(u, us, uz, w, ws, wz, ms, mz)
            s = Reshape(m, split)
            xi = Transpose<perm = [0, 2, 1, 3]>(s)
        }}""")
    weights = np.random.default_rng(4).integers(-127, 128, (64, width)).astype(np.int8)
    before.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    nodes, graph = [*before.node, *model.graph.node], model.graph
    del graph.node[:], graph.input[0]
    graph.node.extend(nodes)
    graph.input.extend(before.input)
    graph.initializer.extend(before.initializer)
    onnx.checker.check_model(model)
    return model


# One row of all heads; rows of one head; a Transpose that moves heads.
@pytest.mark.parametrize(("tokens", "heads"), [(1, 3), (5, 1), (5, 3)])
def test_the_results_of_products_are_rotated_on_the_machine(tokens: int, heads: int) -> None:
    rng = np.random.default_rng(6)
    u = rng.integers(-128, 128, (tokens, 64)).astype(np.int8)
    inputs: dict[str, Any] = {"u": u, "places": rng.integers(0, 500, tokens)}
    with Session(after_a_product(tokens, heads), "pynq-extended") as session:
        assert session.check(inputs).ok
        on_machine = [layer.operator for layer in session.layers if not layer.reason]
        on_host = {layer.operator for layer in session.layers if layer.reason}
    moved = "+Transpose" if min(tokens, heads) > 1 else ""
    assert on_machine == [f"QLinearMatMul{moved}", "RowRotation"]
    assert on_host <= CONVERSIONS


def test_the_design_computes_the_same() -> None:
    assert compared(integer_rotation(), "rtl") == (0, {})


@pytest.mark.parametrize("waves", WAVES)
def test_few_elements_differ_from_the_float_operators(waves: str) -> None:
    given: Any = ((8, 400, 64), waves)
    models = [make(*given) for make in (qdq_rotation, integer_rotation)]
    inputs = random_inputs(models[0], 4)
    a, b = (
        run_session(exact_session(model.SerializeToString()), ["yi"], inputs)["yi"].astype(int)
        for model in models
    )
    assert abs(a - b).max() <= 1
    assert abs(a - b).mean() < 5e-4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shape": (1, 2, 3, 40)}, "its rows have 40 elements, not a multiple of 16"),
        ({"config": "pynq"}, "it needs a machine with REQUANTIZE"),
    ],
)
def test_the_host_rotates_what_the_machine_cannot(options: dict[str, Any], reason: str) -> None:
    config = options.pop("config", "pynq-extended")
    assert compared(integer_rotation(**options), config=config) == (0, {"RowRotation": reason})


def test_factors_that_are_too_large_are_the_hosts() -> None:
    model = integer_rotation()
    for item in model.graph.initializer:
        if item.name == "cosines/integers":
            value = onnx.numpy_helper.to_array(item) + np.int32(7)
            item.CopyFrom(onnx.numpy_helper.from_array(value, item.name))
    assert compared(model) == (0, {"RowRotation": "its factors may exceed 65,535"})


def test_an_input_with_a_zero_point_stays_in_float() -> None:
    model = integer_rotation(zeros=(3, 0))
    assert "Neg" in {node.op_type for node in model.graph.node}


def test_a_wrong_matrix_of_the_machine_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any) -> Any:
        matrices = rotation_matrices(*arguments).copy()
        matrices[1:] = abs(matrices[1:])
        return matrices

    monkeypatch.setattr(lowering, "rotation_matrices", wrong)
    assert compared(integer_rotation((8, 32)))[0] > 0
