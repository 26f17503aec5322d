"""Types of operators that ONNX does not define are asked of ONNX Runtime, once."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from amaranth_vta.sw.compiler.graph.canonical.canonical_form import canonical
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session


def test_one_session_finds_the_types_of_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        helper.make_node("Gelu", ["x"], ["g"], name="g", domain="com.microsoft"),
        helper.make_node("Relu", ["g"], ["r"], name="r"),
        helper.make_node("Gelu", ["r"], ["y"], name="y", domain="com.microsoft"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "test", [x], [y])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    sessions: list[bytes] = []

    def noted(model: bytes) -> object:
        sessions.append(model)
        return exact_session(model)

    home = "amaranth_vta.sw.compiler.graph.load.foreign_types"
    monkeypatch.setattr(f"{home}.exact_session", noted)
    network = canonical(load_network(onnx.load_model_from_string(model.SerializeToString()), 1))
    assert {name: network.types[name].shape for name in "grxy"} == dict.fromkeys("grxy", (2, 3))
    assert len(sessions) == 1
