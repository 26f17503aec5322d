"""Unrolled recurrent layers compute what ONNX Runtime's operators compute."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, shape_inference

from amaranth_vta import cli
from amaranth_vta.quantize.quantizer import Options, quantize
from amaranth_vta.quantize.recurrent_layers import with_unrolled_layers
from amaranth_vta.report.host_summary import summary
from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
INPUTS, HIDDEN = 6, 8
FORMS = [
    (kind, direction, has_state, has_bias, resets)
    for kind, direction, has_state, has_bias, resets in product(
        GATES, ("forward", "reverse", "bidirectional"), (False, True), (False, True), (0, 1)
    )
    if not resets or kind == "GRU"
]


def layer(
    kind: str,
    direction: str = "forward",
    has_state: bool = False,
    has_bias: bool = True,
    resets: int = 0,
    steps: int | str = 3,
    batch: int = 2,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one layer with random weights: ``x`` (steps, batch, INPUTS), and states."""
    random = np.random.default_rng(1)
    directions = 2 if direction == "bidirectional" else 1
    shapes = {
        "W": (directions, GATES[kind] * HIDDEN, INPUTS),
        "R": (directions, GATES[kind] * HIDDEN, HIDDEN),
        **({"B": (directions, 2 * GATES[kind] * HIDDEN)} if has_bias else {}),
    }
    constants = [
        numpy_helper.from_array(random.normal(0, 0.5, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    states = ["h", "c"][: has_state * (1 + (kind == "LSTM"))]
    results = ["y", "y_h", "y_c"][: 2 + (kind == "LSTM")]
    if kind == "GRU":
        attributes["linear_before_reset"] = resets
    node = helper.make_node(
        kind,
        ["x", "W", "R", "B" if has_bias else "", "", *states],
        results,
        name="layer",
        direction=direction,
        hidden_size=HIDDEN,
        **attributes,
    )
    given = {"x": (steps, batch, INPUTS), **dict.fromkeys(states, (directions, batch, HIDDEN))}
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in named]
        for named in (given.items(), dict.fromkeys(results).items())
    )
    graph = helper.make_graph([node], "layer", inputs, outputs, constants)
    opset = [helper.make_opsetid("", 17)]
    return shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opset, ir_version=8))


def random_inputs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    random = np.random.default_rng(2)
    return {
        item.name: random.normal(
            0, 1, [dim.dim_value for dim in item.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for item in model.graph.input
    }


def operators(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


def assert_equal_results(unrolled: onnx.ModelProto, model: onnx.ModelProto) -> None:
    """Both compute the same in ONNX Runtime, up to rounding."""
    inputs = random_inputs(model)
    found, expected = (
        exact_session(item.SerializeToString()).run(None, inputs) for item in (unrolled, model)
    )
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("kind", "direction", "has_state", "has_bias", "resets"), FORMS)
def test_results_equal_those_of_the_operator(
    kind: str, direction: str, has_state: bool, has_bias: bool, resets: int, steps: int
) -> None:
    model = layer(kind, direction, has_state, has_bias, resets, steps)
    unrolled = with_unrolled_layers(model)
    onnx.checker.check_model(unrolled)
    assert operators(unrolled).isdisjoint(GATES)
    assert_equal_results(unrolled, model)


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 65},
        {"steps": "open"},
        {"activations": ["Sigmoid", "Tanh", "Relu"]},
        {"clip": 1.0},
        {"input_forget": 1},
    ],
)
def test_other_layers_remain(options: dict[str, Any]) -> None:
    assert operators(with_unrolled_layers(layer("LSTM", **options))) == {"LSTM"}


def with_constant(model: onnx.ModelProto, position: int, value: np.ndarray) -> onnx.ModelProto:
    """``model`` with a constant as another input of its layer."""
    (node,) = model.graph.node
    node.input.extend([""] * (position + 1 - len(node.input)))
    node.input[position] = "added"
    model.graph.initializer.append(numpy_helper.from_array(value, "added"))
    return model


@pytest.mark.parametrize(
    ("position", "neutral", "other"),
    [
        (4, np.array([3, 3], np.int32), np.array([3, 2], np.int32)),
        (4, np.array([3, 3], np.int32), np.array([0, 0], np.int32)),
        (7, np.zeros((1, 3 * HIDDEN), np.float32), np.ones((1, 3 * HIDDEN), np.float32)),
    ],
    ids=["lengths", "lengths of zero", "peepholes"],
)
def test_an_input_without_effect_is_ignored(
    position: int, neutral: np.ndarray, other: np.ndarray
) -> None:
    model = with_constant(layer("LSTM"), position, neutral)
    unrolled = with_unrolled_layers(model)
    assert operators(unrolled).isdisjoint(GATES)
    assert_equal_results(unrolled, model)
    remaining = with_unrolled_layers(with_constant(layer("LSTM"), position, other))
    assert operators(remaining) == {"LSTM"}


@pytest.mark.parametrize("value", [0.0, 0.5])
@pytest.mark.parametrize("form", ["constant", "ConstantOfShape", "Expand"])
@pytest.mark.parametrize("kind", GATES)
def test_initial_states_of_zeros_are_not_computed(kind: str, form: str, value: float) -> None:
    """PyTorch writes such states: constants, or expanded to the shape of an open batch."""
    model = layer(kind, has_state=True)
    states = [item for item in model.graph.input if item.name != "x"]
    del model.graph.input[1:]
    size = np.array([1, 2, HIDDEN])
    for state in states:
        name = state.name
        if form == "constant":
            filled = np.full(size, value, np.float32)
            model.graph.initializer.append(numpy_helper.from_array(filled, name))
            continue
        single = numpy_helper.from_array(np.array([value], np.float32), f"{name}_value")
        model.graph.initializer.append(numpy_helper.from_array(size, f"{name}_size"))
        if form == "Expand":
            model.graph.initializer.append(single)
            node = helper.make_node(form, [single.name, f"{name}_size"], [name])
        else:
            node = helper.make_node(form, [f"{name}_size"], [name], value=single)
        model.graph.node.insert(0, node)
    unrolled = with_unrolled_layers(model)
    read = {name for node in unrolled.graph.node for name in node.input}
    assert read.isdisjoint({"h", "c"}) == (value == 0)
    assert_equal_results(unrolled, model)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", GATES)
def test_results_that_nothing_reads_are_not_computed(kind: str, steps: int) -> None:
    model = layer(kind, steps=steps)
    (last,) = [item for item in model.graph.output if item.name == "y_h"]
    del model.graph.output[:]
    model.graph.output.append(last)
    unrolled = with_unrolled_layers(model)
    read = {"y_h", *(name for node in unrolled.graph.node for name in node.input)}
    assert all(read.intersection(node.output) for node in unrolled.graph.node)
    assert operators(unrolled).isdisjoint({"Concat", "Unsqueeze"})
    assert_equal_results(unrolled, model)


def test_a_layer_may_read_an_output_of_the_model() -> None:
    model = layer("GRU")
    (node,) = model.graph.node
    node.input[0] = "negated"
    model.graph.node.insert(0, helper.make_node("Neg", ["x"], ["negated"]))
    output = helper.make_tensor_value_info("negated", TensorProto.FLOAT, (3, 2, INPUTS))
    model.graph.output.append(output)
    assert operators(with_unrolled_layers(model)).isdisjoint(GATES)


@pytest.mark.parametrize("name", ["layer", "y_h"])
def test_a_layer_may_stay_whole(name: str) -> None:
    assert operators(with_unrolled_layers(layer("GRU"), [name])) == {"GRU"}


@pytest.mark.parametrize("kind", GATES)
def test_all_products_of_a_quantized_layer_are_on_the_machine(kind: str) -> None:
    model = layer(kind, has_state=True)
    made = quantize(model, [random_inputs(model)], Options()).model
    with Session(made, "tiny-extended", "functional") as session:
        assert session.check(random_inputs(model)).mismatches == 0
        found = summary(session.layers)
    assert found["macs_on_machine"] == 3 * 2 * GATES[kind] * (INPUTS + HIDDEN) * HIDDEN
    assert found["macs_on_host"] == 0


@pytest.mark.parametrize("kind", GATES)
def test_a_batch_of_one_stays_on_the_machine_between_steps(kind: str) -> None:
    model = layer(kind, batch=1)
    made = quantize(model, [random_inputs(model)], Options()).model
    with Session(made, "tiny-extended") as session:
        assert session.check(random_inputs(model)).mismatches == 0
        on_host = {item.operator for item in session.layers if item.reason}
    assert on_host == {"QuantizeLinear", "DequantizeLinear", "Reshape"}


def test_a_layer_left_in_float_is_whole(tmp_path: Path) -> None:
    source, result = str(tmp_path / "f.onnx"), str(tmp_path / "q.onnx")
    onnx.save(layer("LSTM"), source)
    assert cli.invoke(["quantize", source, "-o", result, "--in-float", "layer"]) == 0
    assert "LSTM" in operators(onnx.load(result))
