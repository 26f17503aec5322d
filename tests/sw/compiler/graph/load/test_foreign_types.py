"""ONNX Runtime is asked once for the result types of operators that ONNX does not define."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from amaranth_vta.session import Session, random_inputs
from amaranth_vta.sw.compiler.graph.canonical.canonical_form import canonical
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session
from tests.support.quantized_forms import floats, matrix, qdq


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


ROWS = (2, 4, 24)
# Operators between two layers: they compute z from d, both with 24 channels.
OPERATORS = {
    "SimplifiedLayerNormalization": "z = SimplifiedLayerNormalization<axis=-1>(d, v(24))",
    "SkipLayerNormalization": "z = com.microsoft.SkipLayerNormalization(d, x, v(24), v(24))",
    "SkipSimplifiedLayerNormalization": "z, , , s = "
    "com.microsoft.SkipSimplifiedLayerNormalization(d, x, v(24))",
    "FusedMatMul": "z = com.microsoft.FusedMatMul<transB=1,alpha=0.5>(d, w(24,24))",
    "RotaryEmbedding": "z = com.microsoft.RotaryEmbedding<num_heads=3>"
    "(d, positions, w(9,4), w(9,4))",
    "MultiHeadAttention": "z = com.microsoft.MultiHeadAttention<num_heads=3>(d, x, x)",
    "GroupQueryAttention": "z, p, q = com.microsoft.GroupQueryAttention<num_heads=3,"
    "kv_num_heads=1>(d, w(2,4,8), w(2,4,8), , , lengths, total)",
    # ONNX Runtime does not infer shapes for these.
    "CDist": 'r = Reshape(d, i(8,24)) z = com.microsoft.CDist<metric="sqeuclidean">(r, w(24,24))',
    "ExpandDims": "f = Squeeze(axis) g = com.microsoft.ExpandDims(d, f) h = Relu(g)"
    "z = Squeeze(h, i(0))",
}


def between(text: str, opset: int = 17) -> onnx.ModelProto:
    """A network of ``text``, which computes z from d, between two layers."""
    first = matrix("m", "k(24,24)") + qdq("a", "x", 0.03) + "b = MatMul(a, m)" + qdq("d", "b", 0.05)
    last = matrix("n", "k(24,6)") + qdq("e", "z", 0.04) + "o = MatMul(e, n)" + qdq("y", "o", 0.05)
    # Before opset 13, DequantizeLinear has no axis.
    whole = (first + text + last).replace("<axis=0>", "" if opset < 13 else "<axis=0>")
    model = floats(whole, ROWS, opset)
    given: dict[str, Any] = {
        "positions": np.tile(np.arange(4), (2, 1)),
        "lengths": np.array([3, 3], np.int32),
        "total": np.array(4, np.int32),
        "axis": np.array([0], np.int32),
    }
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(value, name) for name, value in given.items()
    )
    return model


@pytest.mark.parametrize("name", OPERATORS)
def test_the_host_runs_an_operator_that_only_onnx_runtime_has(name: str) -> None:
    with Session(between(OPERATORS[name]), "tiny-extended") as session:
        inputs = random_inputs(session)
        report = session.check(inputs)
        assert report.mismatches == 0
        reasons = {layer.operator: layer.reason for layer in session.layers}
        assert reasons[name] == f"the machine has no {name}"
        products = [layer for layer in session.layers if layer.placed_on == "machine"]
        assert len(products) == 2
    wanted = exact_session(between(OPERATORS[name]).SerializeToString()).run(["y"], inputs)
    assert np.mean(np.abs(report.outputs["y"] - wanted[0]) > 1e-5) < 0.03


@pytest.mark.parametrize("opset", [11, 28])
def test_it_is_run_in_a_file_whose_opset_is_converted(opset: int) -> None:
    model = between(OPERATORS["SimplifiedLayerNormalization"], opset)
    with Session(model, "tiny-extended") as session:
        assert f"converted from opset {opset}" in session.note
        assert session.run(random_inputs(session))["y"].shape == (2, 4, 6)
        assert [layer.placed_on for layer in session.layers].count("machine") == 2


def test_it_is_run_within_a_branch() -> None:
    text = "l = ReduceSum<keepdims=0>(x) p = Greater(l, c(0)) z = If (p) <then_branch = g () => "
    text += "(float t) { t = SimplifiedLayerNormalization<axis=-1>(d, v(24)) }, "
    text += "else_branch = h () => (float e2) { e2 = Relu(d) }> "
    with Session(between(text), "tiny-extended") as session:
        assert session.check(random_inputs(session)).ok


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "z = com.microsoft.MatMulNBits<K=24,N=24,bits=4,block_size=7>(d, u(24,2,8), v(48))",
            r"Only block sizes 16, 32, 64, 128, and 256 are supported",
        ),
        ("z = com.microsoft.Rfft(d)", "Could not find an implementation for Rfft|Rfft"),
        ("z = Scale<scale=2.0>(d)", r"has an operator that ONNX does not define: Scale \(node"),
        ("z = com.microsoft.SkipLayerNormalization(d)", "has input size 1 not in range"),
    ],
)
def test_what_onnx_runtime_refuses_is_refused_with_its_reason(text: str, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence) as found:
        Session(between(text), "tiny-extended")
    said = str(found.value)
    assert not any(part in said for part in ("\n", "[ONNXRuntimeError]", "onnxruntime_src"))
