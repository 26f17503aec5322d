"""Masked attention keeps its accuracy, also for masks that calibration has not seen."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from amaranth_vta.quantize.accuracy import Accuracy, accuracy
from amaranth_vta.quantize.quantizer import Options, QuantizedModel, quantize

HEADS, LENGTH, WIDTH = 2, 12, 16
LOWEST = float(np.finfo(np.float32).min)
# How each head computes the masked scores m from the scores s. cm is a constant mask, cb the same
# as booleans, low a large negative number; mask and keep are inputs of numbers and booleans.
CONSTANT = {
    "added": "m = Add(s, cm)",
    "added first": "t = Add(cm, s) m = Mul(t, half)",
    "chosen": "m = Where(cb, s, low)",
    "subtracted": "n = Neg(cm) m = Sub(s, n)",
    "the lower one": "m = Min(s, cl)",
    "behind a reshape": "t = Reshape(s, flat) u = Add(t, cm) m = Reshape(u, heads)",
    "two": "t = Where(cb, s, low) m = Add(t, cm)",
}
GIVEN = {
    "added": "z = Sub(one, mask) n = Mul(z, low) m = Add(s, n)",
    "chosen": "m = Where(keep, s, low)",
    "as it is": "m = Add(s, mask)",
    "multiplied": "t = Mul(s, mask) z = Sub(one, mask) n = Mul(z, high) m = Sub(t, n)",
}
CASES = [
    *((masking, low) for masking in CONSTANT for low in (-100, -1e9, LOWEST)),
    *((masking, -np.inf) for masking in ("added", "chosen", "the lower one")),
]


def attention(masking: str, low: float, given: str = "") -> onnx.ModelProto:
    rng = np.random.default_rng(9)
    inputs = f"float[1, {LENGTH}, {HEADS * WIDTH}] x{given and ', ' + given}"
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g ({inputs}) => (float[1, {HEADS}, {LENGTH}, {WIDTH}] y)
        <int64[4] split = {{1, {LENGTH}, {HEADS}, {WIDTH}}},
         float half = {{0.5}}, float one = {{1}},
         int64[3] flat = {{{HEADS}, {LENGTH}, {LENGTH}}},
         int64[4] heads = {{1, {HEADS}, {LENGTH}, {LENGTH}}}> {{
            q0 = MatMul(x, wq) k0 = MatMul(x, wk) v0 = MatMul(x, wv)
            q1 = Reshape(q0, split) k1 = Reshape(k0, split) v1 = Reshape(v0, split)
            q = Transpose <perm = [0, 2, 1, 3]> (q1)
            k = Transpose <perm = [0, 2, 3, 1]> (k1)
            v = Transpose <perm = [0, 2, 1, 3]> (v1)
            s = MatMul(q, k)
            {masking}
            p = Softmax <axis = -1> (m)
            y = MatMul(p, v)
        }}
    """)
    causal = np.tril(np.ones((LENGTH, LENGTH), bool))
    constants = {
        **{f"w{name}": rng.normal(0, 0.1, (HEADS * WIDTH,) * 2) for name in "qkv"},
        "cm": np.where(causal, 0, low),
        "cl": np.where(causal, -low, low),
        "low": np.array(low),
        "high": np.array(-low),
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(values.astype(np.float32), name)
        for name, values in constants.items()
    )
    model.graph.initializer.append(numpy_helper.from_array(causal, "cb"))
    return model


def samples(count: int, **more: np.ndarray) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(10)
    shape = (1, LENGTH, HEADS * WIDTH)
    return [{"x": rng.normal(0, 1, shape).astype(np.float32), **more} for _ in range(count)]


def worst(quantized: QuantizedModel, judged: list[dict[str, np.ndarray]]) -> Accuracy:
    return min(accuracy(quantized, judged), key=lambda item: item.decibels)


@pytest.mark.parametrize(("masking", "low"), CASES)
def test_constant_masks(masking: str, low: float) -> None:
    quantized = quantize(attention(CONSTANT[masking], low), samples(8), Options())
    assert worst(quantized, samples(8)).decibels > 30
    products = [node for node in quantized.model.graph.node if node.op_type == "MatMul"]
    for product in products:
        assert all("DequantizeLinear" in name for name in product.input)


@pytest.mark.parametrize("low", [-1e4, LOWEST])
@pytest.mark.parametrize("masking", GIVEN)
def test_masks_that_calibration_has_not_met(masking: str, low: float) -> None:
    options = Options(unsigned_activations=True)
    kind = "bool" if masking == "chosen" else "float"
    name = "keep" if masking == "chosen" else "mask"
    model = attention(GIVEN[masking], low, f"{kind}[1, 1, 1, {LENGTH}] {name}")
    dtype = bool if kind == "bool" else np.float32
    all_in, out = (0, low) if masking == "as it is" else (1, 0)
    everything = np.full((1, 1, 1, LENGTH), all_in, dtype)
    some = everything.copy()
    some[..., -4:] = out
    quantized = quantize(model, samples(8, **{name: everything}), options)
    assert worst(quantized, samples(8, **{name: some})).decibels > 30


def test_a_bias_before_a_softmax_is_quantized() -> None:
    """It is not a mask: the addition stays with its product."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> g (float[1, 6, 4] x) => (float[1, 6, 4] y)
        <float[4, 4] w = {1, 2, 3, 4, -4, 3, -2, 1, 1, -2, 3, -4, 4, 3, 2, 1},
         float[1, 1, 4] b = {0.5, -0.5, 1, -1}>
        { s = MatMul(x, w) t = Add(s, b) y = Softmax <axis = -1> (t) }
    """)
    rng = np.random.default_rng(11)
    few = [{"x": rng.normal(0, 1, (1, 6, 4)).astype(np.float32)} for _ in range(4)]
    nodes = quantize(model, few, Options()).model.graph.node
    (softmax,) = (node for node in nodes if node.op_type == "Softmax")
    assert softmax.input[0] == "t_DequantizeLinear_Output"


@pytest.mark.parametrize("low", [-1e9, LOWEST])
def test_a_mask_anywhere_else_leaves_other_values_alone(low: float) -> None:
    """A masked maximum, as over a point set with padding."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> g (float[1, 6, 4] x) => (float[1, 4] y)
        <float[4, 4] w = {1, 2, 3, 4, -4, 3, -2, 1, 1, -2, 3, -4, 4, 3, 2, 1}> {
            s = MatMul(x, w) a = Relu(s) m = Add(a, mask)
            t = ReduceMax <axes = [1], keepdims = 0> (m) y = MatMul(t, w)
        }
    """)
    mask = np.array([0, 0, 0, low, 0, low], np.float32).reshape(1, 6, 1)
    model.graph.initializer.append(numpy_helper.from_array(mask, "mask"))
    rng = np.random.default_rng(12)
    few = [{"x": rng.normal(0, 1, (1, 6, 4)).astype(np.float32)} for _ in range(8)]
    found = accuracy(quantize(model, few, Options()), few)
    assert min(item.decibels for item in found) > 25
