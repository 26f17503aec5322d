"""Float variables that are only read quantized hold integers, and no result changes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.canonical.canonical_form import canonical
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network
from amaranth_vta.sw.compiler.graph.load.states import with_states

STATES = {"past": "next"}
# The last three of the rows so far, two of which are used in another order.
MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[1, 4] x, float[3, 4] past) => (float[4, 2] y{output}, float[3, 4] next)
<float s = {{0.1}}, float other = {{0.2}}, int8 z = {{3}}, int64[1] one = {{1}},
 int64[1] four = {{4}}, int64[1] zero = {{0}}, int64[1] two = {{2}}> {{
    whole = Concat<axis = 0>(past, x)
    next = Slice(whole, one, four, zero)
    turned = Transpose<perm = [1, 0]>(whole)
    part = Slice(turned, zero, two, one)
    a = QuantizeLinear(part, s, z)
    b = DequantizeLinear(a, s, z)
    {more}
    y = Relu(b)
}}
"""


def model(more: str = "", output: str = "") -> onnx.ModelProto:
    return parser.parse_model(MODEL.format(more=more, output=output))


def kept_type(source: onnx.ModelProto) -> str:
    (state,) = canonical(load_network(with_states(source, STATES), 1)).states
    return str(state.initial.dtype)


def results(source: onnx.ModelProto, runs: list[np.ndarray]) -> list[dict[str, np.ndarray]]:
    """The results of ONNX Runtime on the file, whose variable is the float output."""
    session = onnxruntime.InferenceSession(source.SerializeToString())
    names = [item.name for item in source.graph.output if item.name != "next"]
    past, found = np.zeros((3, 4), np.float32), []
    for x in runs:
        *values, past = session.run([*names, "next"], {"x": x, "past": past})
        found.append(dict(zip(names, values, strict=True)))
    return found


@pytest.mark.parametrize("move", ["", "Flatten(turned)", "Gather<axis = 1>(turned, two)"])
def test_a_variable_that_is_only_read_quantized_holds_integers(move: str) -> None:
    """With all operators that commute with quantization in between."""
    more = f"m = {move} c = QuantizeLinear(m, s, z) f = DequantizeLinear(c, s, z)" if move else ""
    source = model(more, ", float[4, n] f" if move else "")
    network = canonical(load_network(with_states(source, STATES), 1))
    (state,) = network.states
    assert state.initial.dtype == np.int8
    assert (state.initial == 3).all()  # the zero point
    runs = [*np.random.default_rng(0).normal(0, 6, (5, 1, 4)).astype(np.float32)]
    with Session(source, "tiny-extended", states=STATES) as session:
        found = [session.run({"x": x}) for x in runs]
        np.testing.assert_equal(found, results(source, runs))
        session.reset()
        np.testing.assert_equal(session.run({"x": runs[0]}), found[0])


@pytest.mark.parametrize(
    ("more", "output"),
    [
        ("f = Relu(whole)", ", float[4, 4] f"),  # reads floats
        ("c = QuantizeLinear(turned, other, z) f = Cast<to = 6>(c)", ", int32[4, 4] f"),
        ("f = Identity(turned)", ", float[4, 4] f"),  # is an output
    ],
)
def test_a_variable_with_other_readers_holds_floats(more: str, output: str) -> None:
    assert kept_type(model(more, output)) == "float32"
