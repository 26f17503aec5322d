"""Matrix products and their biases are quantized as one operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from amaranth_vta.networks import generate
from amaranth_vta.quantize.product_biases import remove_quantization_before_biases
from amaranth_vta.quantize.quantizer import Options, quantize
from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session

BIAS = np.random.default_rng(1).normal(0, 0.4, 12).astype(np.float32)
QUANTIZED = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 6, 8] x) => (float[2, 6, 12] y)
    <float s = {0.02}, float t = {0.05}, float r = {0.04}, int8 z = {3}, int8 o = {0},
     float[12] b_scale, int8[12] b_zero_point, int8[12] b_quantized,
     float[12] w_scale, int8[12] w_zero_point, int8[8, 12] w_quantized>
    {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        w_DequantizeLinear_Output = DequantizeLinear<axis = 1>(w_quantized, w_scale, w_zero_point)
        b_DequantizeLinear_Output = DequantizeLinear<axis = 0>(b_quantized, b_scale, b_zero_point)
        m = MatMul(d, w_DequantizeLinear_Output)
        mq = QuantizeLinear(m, t, o)
        md = DequantizeLinear(mq, t, o)
        a = ADD
        aq = QuantizeLinear(a, r, o)
        y = DequantizeLinear(aq, r, o)
    }
"""


def quantized(add: str) -> onnx.ModelProto:
    """`QUANTIZED` with the operator ``add``, after removal of the quantization before it; tensors
    have the names of ONNX Runtime's quantizer.
    """
    rng, model = np.random.default_rng(2), onnx.parser.parse_model(QUANTIZED.replace("ADD", add))
    values: dict[str, Any] = {
        "w_quantized": rng.integers(-90, 90, (8, 12)).astype(np.int8),
        "w_scale": rng.uniform(0.002, 0.01, 12).astype(np.float32),
        "b_scale": (np.abs(BIAS) / 127).astype(np.float32),
        "b_quantized": (127 * np.sign(BIAS)).astype(np.int8),
    }
    for name in ("w_zero_point", "b_zero_point"):
        values[name] = np.zeros(12, np.int8)
    kept = [item for item in model.graph.initializer if item.name not in values]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in values.items()
    )
    given = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 6, 8] x) => (float[2, 6, 12] y) { m = MatMul(x, w) y = Add(m, b) }
    """)
    for name, value in (("w", np.zeros((8, 12), np.float32)), ("b", BIAS)):
        given.graph.initializer.append(numpy_helper.from_array(value, name))
    remove_quantization_before_biases(model, given)
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize(
    "add", ["Add(md, b_DequantizeLinear_Output)", "Add(b_DequantizeLinear_Output, md)"]
)
def test_a_bias_is_added_before_the_result_is_quantized(add: str) -> None:
    model = quantized(add)
    operators = [node.op_type for node in model.graph.node]
    first = operators.index("MatMul")
    assert operators[first : first + 3] == ["MatMul", "Add", "QuantizeLinear"]
    # Neither scales nor quantized constants are left over.
    read = {name for node in model.graph.node for name in node.input}
    assert {item.name for item in model.graph.initializer} <= read
    with Session(model, "tiny-extended") as session:
        inputs = {"x": np.random.default_rng(0).normal(0, 1, (2, 6, 8)).astype(np.float32)}
        report = session.check(inputs)
        (layer,) = [item for item in session.layers if item.placed_on == "machine"]
    assert report.ok
    assert layer.operator.startswith("QLinear")


@pytest.mark.parametrize(
    "options", [Options(), Options(per_channel=False), Options(int4_weights=True)]
)
def test_biases_of_dead_channels_keep_their_values(options: Options) -> None:
    """In steps of their sums, they are beyond int32."""
    rng = np.random.default_rng(3)
    weights = rng.normal(0, 1, (32, 16)).astype(np.float32)
    weights[:, slice(3, 5) if options.per_channel else slice(None)] *= 1e-9
    bias = rng.normal(0, 1, 16).astype(np.float32)
    bias[3] = -9
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4, 32] x) => (float[4, 16] y) { m = MatMul(x, w) y = Add(m, b) }
    """)
    for name, value in (("w", weights), ("b", bias)):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    samples = [{"x": rng.normal(0, 1, (4, 32)).astype(np.float32)} for _ in range(4)]
    made = quantize(model, samples, options).model
    x = samples[0]["x"]
    found = run_session(exact_session(made.SerializeToString()), ["y"], {"x": x})["y"]
    assert np.abs(found - (x @ weights + bias))[:, 3:5].max() < 0.2
    integers = {item.name: numpy_helper.to_array(item) for item in made.graph.initializer}
    assert np.abs(integers["m_bias_quantized"].astype(np.int64)).max() <= 2**30


@pytest.mark.parametrize("add", ["Add(md, md)", "Sub(md, b_DequantizeLinear_Output)"])
def test_other_operators_stay_between_quantizations(add: str) -> None:
    operators = [node.op_type for node in quantized(add).graph.node]
    assert operators[operators.index("MatMul") + 1] == "QuantizeLinear"


def test_generated_transformers_have_no_quantization_before_biases() -> None:
    graph = generate("vit-tiny", 32, 0.25).model.graph
    weighted = {
        name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output
    } - {node.input[0] for node in graph.node if node.op_type == "MatMul"}
    products = [node for node in graph.node if node.op_type == "MatMul"]
    of_constants = [
        node for node in products if node.input[1] in weighted and "weight" in node.input[1]
    ]
    readers = {
        node.op_type for node in graph.node for item in of_constants if item.output[0] in node.input
    }
    assert len(of_constants) > 8
    assert readers == {"Add"}
