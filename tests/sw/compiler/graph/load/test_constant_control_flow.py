"""If and Loop are replaced where the executed graph is known at compile time."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from amaranth_vta.session import Session, random_inputs
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network, read_model
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session
from tests.support.branching_forms import (
    AT_RUN_TIME,
    BOOL,
    EITHER,
    FIRST,
    LAST,
    choice,
    layer,
    of,
    repetition,
)
from tests.support.quantized_forms import IMAGE, Shape, floats


def loaded(text: str, shape: Shape = IMAGE) -> list[str]:
    """The operators of the loaded network, after comparing its results with the file's."""
    model = floats(text, shape)
    network = load_network(read_model(model), 1)
    given = {"x": np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)}
    results = [
        exact_session(data.SerializeToString()).run(["y"], given)[0]
        for data in (model, network.to_onnx())
    ]
    assert np.array_equal(*results)
    return [node.operator for node in network.nodes]


def test_an_if_of_the_shape_of_another_if_is_decided() -> None:
    first = choice("p", of("Slice(d, i(0,0), i(6,6), i(2,3))"), of("Identity(d)"), "f")
    size = "s = Shape(f) r = Gather(s, i(3)) q = Equal(r, i(6))"
    second = choice("q", lambda r: layer(r, "f"), of("Relu(f)"))
    operators = loaded(FIRST + BOOL + first + size + second + LAST)
    assert not {"If", "Relu", "Shape"} & {*operators}
    assert operators.count("Conv") == 3


@pytest.mark.parametrize(("images", "wanted"), [(1, 3), (2, 4)])
def test_the_number_of_images_decides(images: int, wanted: int) -> None:
    """PyTorch squeezes the batch dimension if the batch is one image."""
    text = "s = Shape<start=0,end=1>(x) p = Equal(s, i(1))"
    text += choice("p", of("Squeeze(x, i(0))"), of("Identity(x)")) + "y = Relu(z)"
    model = floats(text)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "images"
    network = load_network(read_model(model), images)
    assert "If" not in [node.operator for node in network.nodes]
    shape = network.types["y"].shape
    assert shape is not None
    assert len(shape) == wanted


def test_tensors_of_subgraphs_keep_apart() -> None:
    """Branches and iterations may use the same names."""
    once = choice("p", lambda r: f"c = Relu(d) {r} = Sub(c, d)", of("Identity(d)"), "f")
    twice = choice("p", lambda r: f"c = Sigmoid(f) {r} = Mul(c, f)", of("Identity(f)"), "v0")
    step = "c = Tanh(v) h = Sub(v, c) w = Relu(h) on = Identity(was)"
    loop = repetition("j", "p", step).replace(", d)", ", v0)")
    text = FIRST + BOOL + once + twice + " j = Squeeze(i(3)) " + loop + "y = Relu(z)"
    operators = loaded(text)
    assert [operators.count(name) for name in ("If", "Loop", "Tanh")] == [0, 0, 3]


def test_graphs_within_what_is_decided_read_the_right_tensors() -> None:
    inner = choice("q", lambda r: f"c = Relu(d) {r} = Add(c, h)", of("Neg(h)"), "k")
    outer = choice("p", lambda r: "h = Tanh(d)" + inner + f"{r} = Relu(k)", of("Identity(d)"))
    at_run_time = AT_RUN_TIME.replace("p =", "q =")
    operators = loaded(FIRST + BOOL + at_run_time + outer + "y = Relu(z)")
    assert operators.count("If") == 1


@pytest.mark.parametrize(
    ("then", "otherwise", "alike"),
    [
        ("Reshape(d, i(1,8,100,1))", "Reshape(d, i(0,0,-1,1))", True),
        ("Reshape(d, i(1,8,100,1))", "Reshape(d, i(1,8,1,100))", False),
        ("Relu(d)", "Relu(d)", True),
        ("Relu(d)", "Relu(x)", False),
        ("Mul(d, c(0.5))", "Mul(d, c(0.25))", False),
        ("LeakyRelu<alpha=0.1>(d)", "LeakyRelu<alpha=0.2>(d)", False),
        ("Transpose<perm=[0,1,3,2]>(d)", "Identity(d)", False),
    ],
)
def test_branches_are_alike_if_they_differ_in_views_alone(
    then: str, otherwise: str, alike: bool
) -> None:
    text = FIRST + AT_RUN_TIME + choice("p", of(then), of(otherwise)) + "y = Neg(z)"
    assert ("If" not in loaded(text)) == alike


STEP = layer("w", "v")
COUNT = " l2 = Clip(l, c(1), c(3)) count = Cast<to=7>(l2) "
REASONS = {
    "If": (EITHER, "its condition is known only at run time"),
    "Loop": (
        COUNT + " t = Cast<to=9>(c(1)) " + repetition("count", "t", STEP + "on = Identity(was)"),
        "its number of iterations is known only at run time",
    ),
    "Loop until": (
        COUNT + repetition("", "p", STEP + "on = Less(k, count)"),
        "its number of iterations is known only at run time",
    ),
    "a long Loop": (
        " j = Squeeze(i(99999)) t = Cast<to=9>(c(1)) "
        + repetition("j", "t", "w = Neg(v) on = Identity(was)"),
        "its 99,999 iterations would be 199,998 operators",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_is_decided_at_run_time_is_the_hosts(name: str) -> None:
    text, reason = REASONS[name]
    with Session(floats(FIRST + AT_RUN_TIME + text + LAST), "pynq-extended") as session:
        assert session.check(random_inputs(session)).ok
        assert reason in {item.reason for item in session.layers}
        assert session.has_layers


def test_quantized_operators_of_subgraphs_make_a_quantized_network() -> None:
    text = AT_RUN_TIME + choice(
        "p", lambda r: layer(r, "x", "t"), lambda r: layer(r, "x", "u")
    ).replace("t)", "t)")
    text = "t = DequantizeLinear(k(8,8,1,1), c(0.01)) u = DequantizeLinear(k(8,8,1,1), c(0.01))" + (
        text + "y = Relu(z)"
    )
    with Session(floats(text), "pynq-extended") as session:
        assert not session.unquantized


def test_subgraphs_with_sequences_stay() -> None:
    step = "e = SequenceConstruct(v, v) w = SequenceAt(e, zero) on = Identity(was)"
    text = FIRST + BOOL + " zero = Squeeze(i(0)) j = Squeeze(i(2)) " + repetition("j", "p", step)
    with Session(floats(text + LAST), "pynq-extended") as session:
        assert session.check(random_inputs(session)).ok
        reasons = {item.reason for item in session.layers}
    assert "operators in its subgraphs have sequences of tensors" in reasons


def test_a_loop_shares_the_constants_of_its_body() -> None:
    step = "c = Constant<value_floats=[0.5]>() w = Mul(v, c) on = Identity(was)"
    model = floats(
        BOOL + "j = Squeeze(i(50)) d = Relu(x)" + repetition("j", "p", step) + "y=Relu(z)"
    )
    body = next(
        item.g for node in model.graph.node for item in node.attribute if item.name == "body"
    )
    value = onnx.numpy_helper.from_array(np.array(0.5, np.float32), "c")
    body.initializer.append(value)
    del body.node[0]
    network = load_network(read_model(model), 1)
    assert [node.operator for node in network.nodes].count("Mul") == 50
    assert len([1 for array in network.constants.values() if array.dtype == np.float32]) == 1
