"""Rotary position embeddings of other forms become RowRotation, with equal results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from amaranth_vta.quantize.open_models import closed
from amaranth_vta.quantize.quantizer import Options, prepare, quantize
from amaranth_vta.quantize.rotation_forms import with_full_rotations
from amaranth_vta.quantize.rotation_patterns import rotations
from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session

OPTIONS = Options(symmetric_activations=True, integer_only=True)
WIDTH, LENGTH, ROWS = 32, 5, 40
HEADS, HIDDEN = f"1, 2, {LENGTH}", f"1, {LENGTH}"
# The dimensions of x before its 16 elements, and how r follows from x, with 32 or 64 elements.
OPERATORS = {
    "4-D": (HEADS, "r = RotaryEmbedding(x, cosines, sines, places)"),
    "3-D": (HIDDEN, "r = RotaryEmbedding<num_heads = 2>(x, cosines, sines, places)"),
    "interleaved": (
        HEADS,
        f"r = RotaryEmbedding<interleaved = 1, rotary_embedding_dim = {WIDTH}>"
        "(x, cosines, sines, places)",
    ),
    "without positions": (HEADS, "r = RotaryEmbedding(x, own_cosines, own_sines)"),
    "com.microsoft": (HIDDEN, "r = com.microsoft.RotaryEmbedding(x, places, cosines, sines)"),
    "after com.microsoft": (
        HEADS,
        """gelu = com.microsoft.QuickGelu(x) z = MatMul(gelu, square)
        r = com.microsoft.RotaryEmbedding(z, places, cosines, sines)""",
    ),
    "com.microsoft interleaved": (
        HEADS,
        "r = com.microsoft.RotaryEmbedding<interleaved = 1>(x, places, cosines, sines)",
    ),
}
_WAVES = """cc = Gather(cosines, places) ss = Gather(sines, places)
    c = Unsqueeze(cc, one) s = Unsqueeze(ss, one)"""
_PARTS = """a = Mul(u, c) b = Mul(s, v) d = Mul(u, s) e = Mul(c, v)
    real = Sub(a, b) imag = Add(e, d)"""
_PAIRS = """real_1 = Unsqueeze(real, last) imag_1 = Unsqueeze(imag, last)
    joined = Concat<axis = -1>(real_1, imag_1) r = Reshape(joined, whole)"""
_TURNED = """cf = Gather<axis = -1>(c, twice) sf = Gather<axis = -1>(s, twice)
    a = Mul(x, cf) b = Mul(turned, sf) r = Add(a, b)"""
COMPOSED = {
    "halves": f"u, v = Split<axis = -1>(x, halves) {_PARTS} r = Concat<axis = -1>(real, imag)",
    "computed": f"""u, v = Split<axis = -1>(x, halves)
        f = Cast<to = 1>(places) column = Unsqueeze(f, ones) angles = Mul(column, frequencies)
        c = Cos(angles) s = Sin(angles) {_PARTS} r = Concat<axis = -1>(real, imag)""",
    "slices of pairs": f"""u = Slice(x, zero, end, last, two) v = Slice(x, one, end, last, two)
        {_PARTS} {_PAIRS}""",
    "columns of pairs": f"""pairs = Reshape(x, in_pairs)
        u = Gather<axis = -1>(pairs, first) v = Gather<axis = -1>(pairs, second)
        {_PARTS} {_PAIRS}""",
    "pairs turned": f"""u = Slice(x, zero, end, last, two) v = Slice(x, one, end, last, two)
        real = Neg(v) imag = Identity(u) {_PAIRS.replace(" r ", " turned ")} {_TURNED}""",
}


def network(dimensions: str, text: str, width: int = WIDTH) -> onnx.ModelProto:
    """A rotation between two products, of rows of ``width`` elements."""
    rng = np.random.default_rng(0)
    angles = np.outer(np.arange(ROWS), 1e4 ** (-np.arange(0, WIDTH, 2) / WIDTH))
    wide = width * (2 if dimensions == HIDDEN else 1)
    if "cc =" not in text and "angles" not in text:
        text = f"{_WAVES} {text}"
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>
        g (float[{dimensions}, 16] g, int64[1, {LENGTH}] places)
        => (float[{dimensions}, 16] y) {{ x = MatMul(g, w) {text} y = MatMul(r, out) }}""")
    constants: dict[str, Any] = {
        "w": rng.normal(0, 0.3, (16, wide)).astype(np.float32),
        "out": rng.normal(0, 0.3, (wide, 16)).astype(np.float32),
        "square": rng.normal(0, 0.3, (wide, wide)).astype(np.float32),
        "cosines": np.cos(angles).astype(np.float32),
        "sines": np.sin(angles).astype(np.float32),
        "own_cosines": np.cos(angles[None, 3 : 3 + LENGTH]).astype(np.float32),
        "own_sines": np.sin(angles[None, 3 : 3 + LENGTH]).astype(np.float32),
        "frequencies": angles[1].astype(np.float32),
        "halves": np.array([WIDTH // 2] * 2),
        "twice": np.arange(WIDTH) // 2,
        "in_pairs": np.array([1, 2, -1, WIDTH // 2, 2]),
        "whole": np.array([1, 2, -1, WIDTH]),
        **{"zero": np.array([0]), "one": np.array([1]), "two": np.array([2])},
        **{"end": np.array([WIDTH]), "last": np.array([-1]), "ones": np.array([1, -1])},
        **{"first": np.array(0), "second": np.array(1)},
    }
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants.items() if name in read
    )
    onnx.checker.check_model(model)
    return model


def inputs(model: onnx.ModelProto, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim]
    return {
        "g": rng.normal(0, 1, shape).astype(np.float32),
        "places": rng.integers(0, ROWS, (1, LENGTH)),
    }


def rotations_on(model: onnx.ModelProto, given: dict[str, Any]) -> tuple[int, list[str], set[str]]:
    """The mismatches of a check, and the operators on the machine and on the host."""
    made = quantize(model, [inputs(model, seed) for seed in range(2)], OPTIONS).model
    with Session(made, "pynq-extended") as session:
        mismatches = session.check(given).mismatches
        on_machine = [layer.operator for layer in session.layers if not layer.reason]
        on_host = {layer.operator for layer in session.layers if layer.reason}
    return mismatches, on_machine, on_host


FORMS = OPERATORS | {name: (HEADS, text) for name, text in COMPOSED.items()}


@pytest.mark.parametrize("form", FORMS)
def test_the_machine_rotates(form: str) -> None:
    model = network(*FORMS[form])
    given = inputs(model, 9)
    mismatches, on_machine, on_host = rotations_on(model, given)
    assert mismatches == 0
    assert on_machine.count("RowRotation") == 1
    # Conversions of positions, the ends of the network, and an operator of com.microsoft.
    assert on_host <= {
        *("Gather", "Unsqueeze", "Cast", "Mul", "Cos", "Sin", "Round", "Clip"),
        *("QuantizeLinear", "DequantizeLinear", "Reshape", "QuickGelu"),
    }


def same_floats(model: onnx.ModelProto, other: onnx.ModelProto, given: dict[str, Any]) -> None:
    a, b = (
        run_session(exact_session(item.SerializeToString()), ["y"], given)["y"]
        for item in (model, other)
    )
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_float_results_stay(form: str) -> None:
    model = prepare(network(*FORMS[form]))
    rewritten = with_full_rotations(model)
    # This form needs no rewriting.
    assert (rewritten is model) == (form == "pairs turned")
    onnx.checker.check_model(rewritten, full_check=True)
    same_floats(model, rewritten, inputs(model, 4))


@pytest.mark.parametrize("form", ["3-D", "com.microsoft", "halves", "pairs turned"])
def test_sequences_of_any_length(form: str) -> None:
    dimensions, text = FORMS[form]
    model = network(dimensions, text)
    for item in (*model.graph.input, *model.graph.output):
        at = 1 if item.name == "places" else len(item.type.tensor_type.shape.dim) - 2
        item.type.tensor_type.shape.dim[at].dim_param = "length"
    rewritten = with_full_rotations(prepare(model))
    assert len(list(rotations(closed(rewritten)))) == 1
    given = inputs(network(dimensions, text), 5)
    given = {"g": given["g"].repeat(2, -2), "places": np.tile(given["places"], 2)}
    same_floats(model, rewritten, given)


@pytest.mark.parametrize("form", ["4-D", "3-D"])
def test_rotations_of_a_part_of_a_row_are_the_hosts(form: str) -> None:
    dimensions, text = OPERATORS[form]
    text = text.replace("<num_heads = 2>", "")
    options = f"<num_heads = 2, rotary_embedding_dim = {WIDTH}>"
    model = network(dimensions, text.replace("Embedding", f"Embedding{options}"), 2 * WIDTH)
    mismatches, on_machine, on_host = rotations_on(model, inputs(model, 3))
    assert mismatches == 0
    assert "RotaryEmbedding" in on_host
    assert "RowRotation" not in on_machine


@pytest.mark.parametrize(
    "text",
    [
        # Each differs from a form above in one place.
        COMPOSED["halves"].replace("Sub(a, b)", "Sub(b, a)"),
        COMPOSED["halves"].replace("Mul(c, v)", "Mul(c, u)"),
        COMPOSED["halves"].replace("(real, imag)", "(imag, real)"),
        COMPOSED["slices of pairs"].replace(_PAIRS, "r = Concat<axis = -1>(real, imag)"),
        OPERATORS["com.microsoft"][1].replace("g(x", "g<scale = 0.5>(x"),
        OPERATORS["com.microsoft"][1].replace("places", "zero"),
    ],
)
def test_other_forms_stay(text: str) -> None:
    model = prepare(network(HEADS, text))
    assert with_full_rotations(model) is model
