"""Inputs and outputs of ONNX models become variables, given or found by their names."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, parser

from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network
from amaranth_vta.sw.compiler.graph.load.states import caches_of, decoder, with_states
from amaranth_vta.sw.runtime.network.model_error import ModelError

# The sum of all inputs so far, and the last three inputs.
SUMS = """<ir_version: 8, opset_import: ["": 17]>
g (float[1, 4] x, float[1, 4] sum, float[3, 4] last) => (float[1, 4] total, float[4, 4] all) {
    total = Add(x, sum)
    all = Concat<axis = 0>(last, x)
}
"""


def sums() -> onnx.ModelProto:
    return parser.parse_model(SUMS)


def test_a_given_pair_keeps_its_value_and_a_longer_output_its_last_elements() -> None:
    states = {"sum": "total", "last": "all"}
    model = with_states(sums(), states)
    network = load_network(model, 1)
    assert network.public_inputs == ["x"]
    assert [(item.source, item.initial.shape) for item in network.states] == [
        ("sum", (1, 4)),
        ("last", (3, 4)),
    ]


def test_a_session_runs_with_given_variables() -> None:
    text = SUMS.replace("=> (", "=> (float[1, 4] y, ").replace("all =", "y = Relu(total)\nall =")
    with Session(parser.parse_model(text), states={"sum": "total", "last": "all"}) as session:
        assert list(session.inputs) == ["x"]
        assert list(session.outputs) == ["y"]
        for expected in (1, 2, 3):
            found = session.run({"x": np.ones((1, 4), np.float32)})
            np.testing.assert_array_equal(found["y"], np.full((1, 4), expected))
        session.reset()
        assert session.check({"x": np.ones((1, 4), np.float32)}).ok


@pytest.mark.parametrize(
    ("states", "problem"),
    [
        ({"other": "total"}, "other is no input; the model has x, sum, last"),
        ({"sum": "other"}, "other is no output; the model has total, all"),
        ({"last": "total"}, r"total has the shape \[1, 4\], which does not fit \[3, 4\] before"),
        ({"sum": "total", "x": "total"}, "total is the next value of two inputs"),
    ],
)
def test_wrong_pairs_are_refused(states: dict[str, str], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        with_states(sums(), states)


def named(*pairs: tuple[str, str]) -> onnx.ModelProto:
    """A model with inputs and outputs of these names."""
    old, new = (
        [helper.make_tensor_value_info(name, 1, [1]) for name in names]
        for names in zip(*pairs, strict=True)
    )
    nodes = [helper.make_node("Identity", [name], [result]) for name, result in pairs]
    return helper.make_model(helper.make_graph(nodes, "g", old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("past_key_values.0.key", "present.0.key"),
        ("past_key_values.3.decoder.value", "present.3.decoder.value"),
        ("past_key_values.0.key", "present_key_values.0.key"),
        ("past_0", "present_0"),
        ("past_key_1", "present_key_1"),
    ],
)
def test_caches_are_found_by_their_names(old: str, new: str) -> None:
    assert caches_of(named(("x", "y"), (old, new))) == {old: new}


def test_a_context_sets_the_sizes_of_open_dimensions() -> None:
    for past, mask, context, size in (
        ("past", "total", 20, 32),
        ("past", "total", 32, 32),
        ("9", "10", 7, 10),
    ):
        model = decoder(decoder_of(past, mask), context, 16)
        shapes = {
            item.name: [dim.dim_value for dim in item.type.tensor_type.shape.dim]
            for item in model.graph.input
        }
        assert shapes == {
            "input_ids": [1, 1],
            "attention_mask": [1, size],
            "past_0": [1, 2, size - 1, 4],
        }


def decoder_of(past: str, mask: str, name: str = "attention_mask") -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["": 17]>
g (int64[batch, n] input_ids, int64[batch, {mask}] {name}, float[batch, 2, {past}, 4] past_0)
=> (float[batch, n] logits, float[batch, 2, m, 4] present_0) {{
    logits = Cast<to = 1>(input_ids)
    present_0 = Identity(past_0)
}}"""
    return parser.parse_model(text)


def test_a_model_that_is_no_decoder_or_too_small_is_refused() -> None:
    with pytest.raises(ModelError, match="the model has no attention_mask, so empty places"):
        decoder(decoder_of("past", "total", "other"), 20, 16)
    with pytest.raises(ModelError, match="the model holds 10 tokens; a context of 11 is more"):
        decoder(decoder_of("9", "10"), 11, 16)
    with pytest.raises(ModelError, match="the model has no inputs and outputs with the names"):
        decoder(sums(), 20, 16)
