"""LayerNormalization and Softmax that exporters write as several operators are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from amaranth_vta.quantize.composed_rows import composed_rows, with_row_operators
from amaranth_vta.quantize.open_models import folded
from amaranth_vta.quantize.quantizer import Options, prepare, quantize
from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session

LAST = "ReduceMean <axes = [-1]>"
NORMALIZATIONS = {
    "torch": f"""
        m = {LAST} (x) d = Sub(x, m) p = Pow(d, two) v = {LAST} (p) a = Add(v, epsilon)
        r = Sqrt(a) n = Div(d, r) g = Mul(n, scale) y = Add(g, bias)
    """,
    "keras": f"""
        m = {LAST} (x) d = Sub(x, m) p = Mul(d, d) v = {LAST} (p) a = Add(v, epsilon)
        r = Sqrt(a) i = Reciprocal(r) k = Mul(i, scale) g = Mul(x, k) h = Mul(m, k)
        o = Sub(bias, h) y = Add(g, o)
    """,
    "flax": """
        p = Mul(x, x) t = ReduceSum <keepdims = 0> (p, last) u = Mul(t, share)
        s = ReduceSum <keepdims = 0> (x, last) m = Mul(s, share) q = Mul(m, m) w = Sub(u, q)
        v = Max(zero, w) vw = Unsqueeze(v, last) a = Add(vw, epsilon) r = Sqrt(a)
        i = Reciprocal(r) k = Mul(i, scale) mw = Unsqueeze(m, last) me = Expand(mw, wide)
        d = Sub(x, me) g = Mul(d, k) y = Add(g, bias)
    """,
}
SOFTMAX = {
    "largest": """
        m = ReduceMax <axes = [-1]> (x) d = Sub(x, m) e = Exp(d) t = ReduceSum(e, last)
        y = Div(e, t)
    """,
    "plain": "e = Exp(x) t = ReduceSum(e, last) y = Div(e, t)",
}


def constants() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    found = {"epsilon": 1e-5, "two": 2, "zero": 0, "share": 1 / 32, "scale": rng.uniform(1, 2, 32)}
    found["bias"] = rng.normal(0, 1, 32)
    kept = {name: np.asarray(value, np.float32) for name, value in found.items()}
    return kept | {"last": np.array([-1]), "wide": np.array([1, 1, 32])}


def model(text: str, shape: str = "n, 4, 32") -> onnx.ModelProto:
    """A network between two products, with an open batch."""
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 13]> g (float[{shape}] in) => (float[{shape}] out)'
        f"{{ x = MatMul(in, w1) {text} out = MatMul(y, w2) }}"
    )
    rng, values = np.random.default_rng(2), constants()
    values |= {name: rng.normal(0, 0.2, (32, 32)).astype(np.float32) for name in ("w1", "w2")}
    read = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in values.items() if name in read
    )
    return prepare(made)


def assert_same(given: onnx.ModelProto, made: onnx.ModelProto, shape: tuple[int, ...]) -> None:
    feeds = {"in": np.random.default_rng(3).normal(0, 1, shape).astype(np.float32)}
    wanted, found = (
        run_session(exact_session(item.SerializeToString()), ["out"], feeds)["out"]
        for item in (given, made)
    )
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("text", NORMALIZATIONS.values(), ids=NORMALIZATIONS)
def test_normalizations_are_found_in_each_form(text: str) -> None:
    given = model(text)
    (found,) = composed_rows(folded(given))
    values = constants()
    assert (found.x, found.y, found.axis) == ("x", "y", 2)
    assert found.epsilon == pytest.approx(1e-5)
    assert found.scale == pytest.approx(values["scale"], rel=1e-4)
    assert found.bias == pytest.approx(values["bias"], abs=1e-5)
    made = with_row_operators(given)
    assert {node.op_type for node in made.graph.node} == {"MatMul", "LayerNormalization"}
    assert_same(given, made, (5, 4, 32))


@pytest.mark.parametrize("text", SOFTMAX.values(), ids=SOFTMAX)
def test_a_softmax_is_found_in_each_form(text: str) -> None:
    made = with_row_operators(model(text))
    assert [node.op_type for node in made.graph.node] == ["MatMul", "Softmax", "MatMul"]


@pytest.mark.parametrize(
    "text",
    [
        NORMALIZATIONS["torch"].replace("Add(v, epsilon)", "Add(v, v)"),
        NORMALIZATIONS["torch"].replace("Sub(x, m)", "Add(x, m)"),
        NORMALIZATIONS["keras"].replace("Sub(bias, h)", "Add(bias, h)"),
        SOFTMAX["largest"].replace("Div(e, t)", "Mul(e, t)"),
        f"m = {LAST} (x) y = Sub(x, m)",
    ],
)
def test_other_functions_are_left_as_they_are(text: str) -> None:
    given = model(text)
    assert with_row_operators(given) is given


def test_the_axis_may_be_any() -> None:
    """Channels before pixels: the rows are transposed."""
    text = NORMALIZATIONS["torch"].replace("[-1]", "[1]").replace("scale", "c").replace("bias", "b")
    given = model("c = Unsqueeze(scale, last) b = Unsqueeze(bias, last)" + text, "n, 32, 32")
    made = with_row_operators(given)
    operators = [node.op_type for node in made.graph.node]
    assert operators == ["MatMul", "Transpose", "LayerNormalization", "Transpose", "MatMul"]
    assert_same(given, made, (2, 32, 32))


def test_operators_named_to_stay_in_float_remain() -> None:
    given = model(NORMALIZATIONS["torch"])
    assert with_row_operators(given, ("v",)) is given


def test_a_composed_normalization_runs_on_the_machine() -> None:
    rng = np.random.default_rng(4)
    samples = [{"in": rng.normal(0, 1, (1, 4, 32)).astype(np.float32)} for _ in range(4)]
    options = Options(symmetric_activations=True, integer_only=True)
    made = quantize(model(NORMALIZATIONS["torch"]), samples, options)
    with Session(made.model, "pynq-extended") as session:
        assert session.check(samples[0]).ok
        on_machine = {layer.operator for layer in session.layers if layer.placed_on == "machine"}
        on_host = {layer.operator for layer in session.layers if layer.placed_on != "machine"}
    assert on_machine == {"QLinearConv", "RowLayerNorm"}
    assert on_host <= {"QuantizeLinear", "DequantizeLinear", "Reshape"}
