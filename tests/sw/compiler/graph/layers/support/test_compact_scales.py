"""Products of one row without bias load 5 bytes of parameters per channel, and stay exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer

CHANNELS, INPUTS = 512, 288


def product(
    rows: int = 1,
    largest: float = 0.02,
    zero: int = 0,
    low: int = -128,
    bias: bool = False,
    least: float = 1e-12,
) -> onnx.ModelProto:
    """A QLinearConv of pixels ``rows`` in number; scales are from ``least`` to ``largest``."""
    random = np.random.default_rng(rows)
    scale = np.geomspace(least, largest, CHANNELS).astype(np.float32)
    constants: dict[str, Any] = {
        "one": np.array(1, np.float32),
        "zero": np.array(0, np.int8),
        "y_zero": np.array(zero, np.int8),
        "low": np.array(low, np.int8),
        "high": np.array(127, np.int8),
        "w": random.integers(-127, 128, (CHANNELS, INPUTS, 1, 1)).astype(np.int8),
        "w_scale": random.permutation(scale),
        "w_zero": np.zeros(CHANNELS, np.int8),
        "b": np.full(CHANNELS, 40, np.int32),
    }
    given = ["x", "one", "zero", "w", "w_scale", "w_zero", "one", "y_zero", *(["b"] * bias)]
    nodes = [
        helper.make_node("QLinearConv", given, ["sums"]),
        helper.make_node("Clip", ["sums", "low", "high"], ["y"], name="clip"),
    ]
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", 3, (1, INPUTS, 1, rows))],
        [helper.make_tensor_value_info("y", 3, (1, CHANNELS, 1, rows))],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def is_compact(model: onnx.ModelProto, runs: int = 4) -> bool:
    """Whether the layer has compact parameters; its results are compared with ONNX Runtime's."""
    random = np.random.default_rng(0)
    with Session(model, "pynq-extended") as session:
        shape = [size or 1 for size in session.inputs["x"].shape or ()]
        for _ in range(runs):
            assert session.check({"x": random.integers(-128, 128, shape).astype(np.int8)}).ok
        items = session.compiled.placement.items
        layer = next(item for item in items if isinstance(item, Layer))
        return "upper" in layer.constants


@pytest.mark.parametrize(
    "options", [{}, {"zero": -7}, {"low": -5}, {"largest": 1e-6}, {"largest": 3e-4}]
)
def test_parameters_of_a_row_are_compact(options: dict[str, Any]) -> None:
    assert is_compact(product(**options))


@pytest.mark.parametrize(
    "options",
    [
        {"rows": 2},  # more products per weight
        {"bias": True},
        {"largest": 0.0626},  # more than 7 upper bits
    ],
)
def test_other_parameters_are_whole(options: dict[str, Any]) -> None:
    assert not is_compact(product(**options))


def test_an_addition_is_fused_with_a_product_with_compact_parameters() -> None:
    model = product(largest=3e-4, least=1e-5)
    graph = model.graph
    constants = {"fine": np.array(0.5, np.float32), "coarse": np.array(1, np.float32)}
    graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in constants.items())
    graph.input.append(helper.make_tensor_value_info("r", 3, (1, CHANNELS, 1, 1)))
    del graph.output[:], graph.node[1:]
    graph.node.extend(
        [
            helper.make_node("DequantizeLinear", ["sums", "fine", "zero"], ["af"]),
            helper.make_node("DequantizeLinear", ["r", "coarse", "zero"], ["bf"]),
            helper.make_node("Add", ["af", "bf"], ["c"]),
            helper.make_node("QuantizeLinear", ["c", "coarse", "zero"], ["y"]),
        ]
    )
    graph.output.append(helper.make_tensor_value_info("y", 3, (1, CHANNELS, 1, 1)))
    random = np.random.default_rng(1)
    with Session(model, "pynq-extended") as session:
        given = {
            "x": random.integers(-128, 128, (1, INPUTS, 1, 1)).astype(np.int8),
            "r": random.integers(-128, 128, (1, CHANNELS, 1, 1)).astype(np.int8),
        }
        assert session.check(given).ok
        items = session.compiled.placement.items
        layer = next(item for item in items if isinstance(item, Layer))
        assert layer.operator == "QLinearConv+Add"
        assert "upper" in layer.constants
