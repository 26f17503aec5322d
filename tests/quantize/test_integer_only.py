"""With ``integer_only`` functions of rows are graphs of integers, which the machine runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, shape_inference

from amaranth_vta.networks.attention import bert_tiny, vit_tiny
from amaranth_vta.networks.decoders import llama_tiny
from amaranth_vta.networks.float_network import FloatNetwork
from amaranth_vta.quantize.accuracy import accuracy
from amaranth_vta.quantize.quantizer import Options, QuantizedModel, quantize
from amaranth_vta.quantize.row_patterns import normalizations
from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.load.input_shapes import with_dimensions
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.runtime.network.network_program import RunLayer
from tests.support.decoders import reference_tokens

OPTIONS = Options(symmetric_activations=True, integer_only=True)
ROWS = {"RowSoftmax", "RowLayerNorm", "RowRMSNorm"}


def inputs(model: onnx.ModelProto, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for item in model.graph.input:
        shape = tuple(size.dim_value for size in item.type.tensor_type.shape.dim)
        if item.type.tensor_type.elem_type == TensorProto.INT64:
            found[item.name] = rng.integers(0, 2, shape)
        else:
            found[item.name] = rng.normal(0, 1, shape).astype(np.float32)
    return found


def quantized(
    grow: Callable[..., Any], size: int, width: float, is_open: bool = False, opset: int = 17
) -> tuple[QuantizedModel, Any]:
    net = FloatNetwork("test", 1, opset, width)
    model = net.model(*grow(net, size))
    closed = with_dimensions(model, net.dimensions)
    samples = [inputs(closed, seed) for seed in range(2)]
    made = quantize(model if is_open else closed, samples, OPTIONS)
    onnx.checker.check_model(made.model)
    return made, samples


def test_an_encoder_leaves_embeddings_and_conversions_to_the_host() -> None:
    made, samples = quantized(bert_tiny, 32, 0.25)
    operators = {node.op_type for node in made.model.graph.node}
    assert not operators & {"Softmax", "LayerNormalization"}
    assert not made.in_float
    assert all(item.decibels > 10 for item in accuracy(made, samples) if item.is_output)
    with Session(made.model, "pynq-extended") as session:
        assert session.check(samples[0]).mismatches == 0
        on_host = {layer.operator for layer in session.layers if layer.reason}
        on_machine = {layer.operator for layer in session.layers if not layer.reason}
    assert on_host == {"Gather", "DequantizeLinear"}
    assert on_machine >= {"RowSoftmax", "RowLayerNorm"}


def test_rows_of_an_encoder_need_not_fill_tiles() -> None:
    """An image of 25 patches: keys and values of 25 rows stay on the machine."""
    made, samples = quantized(vit_tiny, 80, 0.25, opset=20)
    with Session(made.model, "pynq-extended") as session:
        assert session.check(samples[0]).mismatches == 0
        on_host = [layer for layer in session.layers if layer.reason]
    assert {layer.operator for layer in on_host} == {"DequantizeLinear", "QuantizeLinear", "layout"}
    assert [layer.name for layer in on_host if layer.operator == "layout"] == [
        "image_QuantizeLinear_Output"
    ]


def test_a_decoder_masks_scores_on_the_machine() -> None:
    made, samples = quantized(llama_tiny, 16, 0.5)
    rng = np.random.default_rng(2)
    with Session(made.model, "pynq-extended") as session:
        assert session.check(samples[0]).mismatches == 0
        # Most of these masks exclude the largest score of a row.
        for visible in rng.integers(0, 2, (5, 1, 16)):
            masked = {"attention_mask": visible, "position_ids": np.array([[15]])}
            assert session.check(samples[0] | masked).mismatches == 0
        on_host = {layer.operator for layer in session.layers if layer.reason}
        on_machine = {layer.operator for layer in session.layers if not layer.reason}
    assert not on_host & {"Softmax", "ReduceMean", "Sqrt", "Div", "Mul", "Neg", "Split", "Concat"}
    assert on_machine >= {"RowSoftmax", "RowRMSNorm", "RowRotation"}


def test_a_decoder_generates_the_tokens_of_onnx_runtime_and_moves_no_cache() -> None:
    made, _ = quantized(llama_tiny, 16, 0.5, is_open=True)
    prompt, tokens = [3, 1, 4], 11
    with Session(made.model, "pynq-extended", context=16) as session:
        assert list(session.generate(prompt, tokens)) == reference_tokens(
            made.model, prompt, tokens
        )
        # Keys, and values by columns and by rows, of two layers.
        assert len(session.program.kept) == 6
        on_machine = [layer.operator for layer in session.layers if not layer.reason]
        on_host = {layer.operator for layer in session.layers if layer.reason and layer.runs}
    assert on_machine.count("RowRotation") == 4
    assert on_machine.count("RowSoftmax") == 2
    assert on_machine.count("Gather") == 3  # rows of embeddings, cosines and sines
    # The conversion of logits, and the addresses of places in the caches and of rows of tables.
    assert on_host == {"DequantizeLinear", "addresses"}


def test_a_decoder_masks_the_scores_of_blocks_on_the_machine() -> None:
    made, _ = quantized(llama_tiny, 16, 0.5, is_open=True)
    prompt, tokens = [3, 1, 4, 1, 5, 9, 2], 4
    with Session(made.model, "pynq-extended", context=16, prefill=4) as session:
        assert list(session.generate(prompt, tokens)) == reference_tokens(
            made.model, prompt, tokens
        )
        places = np.maximum(np.arange(4) - 1, 0)[None]
        mask = np.eye(1, 16, 15, dtype=np.int64) + np.eye(1, 16, 14, dtype=np.int64)
        ids = np.array([prompt[:4]])
        feeds = {"input_ids": ids, "attention_mask": mask, "position_ids": places}
        assert session.check(feeds).ok
        block = session.program.block
        assert block is not None
        layers = [step.operator for step in block.steps if isinstance(step, RunLayer)]
    assert layers.count("RowSoftmax") == 2


# An open batch, as exporters write it: sizes and positions are computed, and one constant serves
# all operators.
OPEN = """
    <ir_version: 9, opset_import: ["" : 18]>
    g (float[n, 4, 32] x, int64[n, 4] mask) => (float[n, 4, 32] y)
    <int64[1] zero = {0}, int64[1] first = {1}, int64 second = {1}, float one = {1},
     float low = {-1e9}, int64[2] middle = {1, 2}>
    {
        size = Shape(x)  length = Gather(size, second)  end = Unsqueeze(length, zero)
        position = Slice(table, zero, end, first)  e = Add(x, position)
        l = LayerNormalization <axis = -1> (e, gain, shift)
        q = MatMul(l, wq)  k = MatMul(l, wk)  t = Transpose <perm = [0, 2, 1]> (k)
        s = MatMul(q, t)
        wide = Unsqueeze(mask, first)  given = Cast <to = 1> (wide)  hidden = Sub(one, given)
        off = Mul(hidden, low)  a = Add(s, off)
        p = Softmax <axis = -1> (a)
        o = MatMul(p, l)  more = Add(o, one)  y = MatMul(more, wo)
    }
"""


def test_rows_of_a_network_that_computes_its_sizes_are_integers() -> None:
    rng = np.random.default_rng(4)
    model = onnx.parser.parse_model(OPEN)
    values = {"table": rng.normal(0, 1, (1, 16, 32)), "gain": rng.uniform(1, 2, 32)}
    values |= {name: rng.normal(0, 0.2, (32, 32)) for name in ("wq", "wk", "wo")}
    values["shift"] = rng.normal(0, 1, 32)
    for name, value in values.items():
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    samples = [
        {
            "x": rng.normal(0, 1, (1, 4, 32)).astype(np.float32),
            "mask": np.array([[1, 1, 1, seed % 2]]),
        }
        for seed in range(4)
    ]
    made = quantize(model, samples, OPTIONS)
    assert not {"LayerNormalization", "Softmax"} & {node.op_type for node in made.model.graph.node}
    assert made.model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"
    with Session(made.model, "pynq-extended") as session:
        for sample in samples:
            assert session.check(sample).ok
        assert {layer.operator for layer in session.layers if layer.placed_on == "machine"} >= {
            "RowLayerNorm",
            "RowSoftmax",
        }


# Columns are no rows, and a row of 2,000 elements is too long.
OTHER_ROWS = """
    <ir_version: 9, opset_import: ["" : 18]>
    g (float[16, 16] x) => (float[16, 16] y, float[2, 2000] z)
    <int64[2] longer = {2, 2000}>
    {
        a = MatMul(x, w)  rows = Softmax <axis = -1> (a)  b = MatMul(rows, w)
        columns = Softmax <axis = 0> (b)  c = MatMul(columns, w)  y = Relu(c)
        d = MatMul(x, wide)  e = Reshape(d, longer)  long = Softmax <axis = -1> (e)  z = Relu(long)
    }
"""


def test_rows_that_stay_in_float_are_listed() -> None:
    rng = np.random.default_rng(5)
    model = onnx.parser.parse_model(OTHER_ROWS)
    for name, columns in (("w", 16), ("wide", 250)):
        values = rng.normal(0, 1, (16, columns)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    sample = {"x": rng.normal(0, 1, (16, 16)).astype(np.float32)}
    assert set(quantize(model, [sample], OPTIONS).in_float) == {"columns", "long"}
    assert not quantize(model, [sample], Options()).in_float


def composed(*forms: tuple[str, list[str], str, dict[str, Any]]) -> Network:
    """A network of (operator, operands, result, attributes)."""
    constants = {
        "two": np.array(2, np.float32),
        "one": np.array(1, np.float32),
        "epsilon": np.array(1e-6, np.float32),
        "scale": np.linspace(1, 2, 8, dtype=np.float32),
    }
    nodes = [helper.make_node(name, given, [out], **more) for name, given, out, more in forms]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 8))],
        [helper.make_tensor_value_info(forms[-1][2], TensorProto.FLOAT, (2, 8))],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return Network.from_onnx(shape_inference.infer_shapes(model))


def rms(square: Any, *ends: Any, axes: tuple[int, ...] = (-1,), keepdims: int = 1) -> Network:
    return composed(
        square,
        ("ReduceMean", ["s"], "m", {"axes": axes, "keepdims": keepdims}),
        ("Add", ["m", "epsilon"], "a", {}),
        ("Sqrt", ["a"], "r", {}),
        *ends,
    )


MUL: Any = ("Mul", ["x", "x"], "s", {})
POW: Any = ("Pow", ["x", "two"], "s", {})
QUOTIENT: Any = ("Div", ["x", "r"], "n", {}), ("Mul", ["n", "scale"], "y", {})
RECIPROCAL: Any = (
    *(("Reciprocal", ["r"], "i", {}), ("Mul", ["x", "i"], "n", {})),
    ("Mul", ["scale", "n"], "y", {}),
)
INVERSE: Any = (
    *(("Div", ["one", "r"], "i", {}), ("Mul", ["i", "x"], "n", {})),
    ("Mul", ["n", "scale"], "y", {}),
)


@pytest.mark.parametrize("square", [MUL, POW])
@pytest.mark.parametrize("ends", [QUOTIENT, RECIPROCAL, INVERSE])
def test_composed_normalizations_are_found(square: Any, ends: Any) -> None:
    (found,) = normalizations(rms(square, *ends))
    assert (found.x, found.centred, len(found.nodes)) == ("x", False, len(ends) + 4)
    assert found.epsilon == pytest.approx(1e-6)
    np.testing.assert_allclose(found.scale, np.linspace(1, 2, 8), rtol=1e-6)


@pytest.mark.parametrize(
    "network",
    [
        rms(MUL, *QUOTIENT, axes=(0,)),
        rms(("Mul", ["x", "two"], "s", {}), *QUOTIENT),
        rms(("Pow", ["x", "one"], "s", {}), *QUOTIENT),
        rms(MUL, ("Div", ["two", "r"], "i", {}), *INVERSE[1:]),
    ],
)
def test_other_compositions_are_not(network: Network) -> None:
    assert not list(normalizations(network))
