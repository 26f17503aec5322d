"""Functions composed of several operators are quantized as one: only at their ends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from amaranth_vta.quantize.functions import composed_functions
from amaranth_vta.quantize.quantizer import Options, quantize
from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session

FUNCTIONS = {
    "gelu": """
        d = Div(x, root) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)
    """,
    "gelu by tanh": """
        s = Mul(x, x) t = Mul(s, x) u = Mul(cubic, t) a = Add(x, u) b = Mul(factor, a)
        h = Tanh(b) c = Add(one, h) m = Mul(half, c) y = Mul(x, m)
    """,
    "silu": "s = Sigmoid(x) y = Mul(x, s)",
}
NUMBERS = {"root": 2**0.5, "one": 1, "half": 0.5, "cubic": 0.044715, "factor": (2 / np.pi) ** 0.5}


def model(text: str) -> onnx.ModelProto:
    made = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[16, 32] in) => (float[16, 32] out)'
        f"{{ x = MatMul(in, w1) {text} out = MatMul(y, w2) }}"
    )
    rng = np.random.default_rng(1)
    values = {name: np.array(value, np.float32) for name, value in NUMBERS.items()}
    values |= {name: rng.normal(0, 0.5, (32, 32)).astype(np.float32) for name in ("w1", "w2")}
    read = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in values.items() if name in read
    )
    for node in made.graph.node:
        node.name = f"{node.op_type}_{node.output[0]}"
    return made


def samples() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(2)
    return [{"in": rng.normal(0, 1.5, (16, 32)).astype(np.float32)} for _ in range(4)]


@pytest.mark.parametrize("text", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("options", [Options(), Options(power_of_two=True)])
def test_a_function_is_rounded_once(text: str, options: Options) -> None:
    given = model(text)
    made = quantize(given, samples(), options).model
    quantized = {node.input[0] for node in made.graph.node if node.op_type == "QuantizeLinear"}
    assert quantized == {"in", "x", "y", "out_QuantizeLinear_Input"}
    (feeds,) = samples()[:1]
    found, wanted = (
        run_session(exact_session(item.SerializeToString()), ["out"], feeds)["out"]
        for item in (made, given)
    )
    noise = np.square(found - wanted).mean() / np.square(wanted).mean()
    assert -10 * np.log10(noise) > (25 if options.power_of_two else 33)


@pytest.mark.parametrize("text", FUNCTIONS.values(), ids=FUNCTIONS)
def test_the_machine_looks_a_function_up_behind_its_product(text: str) -> None:
    made = quantize(model(text), samples(), Options()).model
    with Session(made, "pynq-extended") as session:
        assert session.check(samples()[0]).ok
        layers = [layer for layer in session.layers if layer.placed_on == "machine"]
    assert len(layers) == 2
    assert layers[0].operator.count("+") == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("e = Erf(d)", "e = Softmax(d)"),
        lambda text: text.replace("Mul(x, a)", "Mul(in, a)"),
        lambda text: text + " z = Relu(e) ",
    ],
)
def test_operators_between_others_are_no_function(change: Callable[[str], str]) -> None:
    graph = model(change(FUNCTIONS["gelu"])).graph
    found = composed_functions(graph, (), ("Add", "Mul"))
    assert "y" not in {item.y for item in found}


def test_a_function_with_an_operator_left_in_float_is_none() -> None:
    graph = model(FUNCTIONS["silu"]).graph
    assert len(list(composed_functions(graph, (), ("Mul",)))) == 1
    assert not list(composed_functions(graph, ("Sigmoid_s",), ("Mul",)))
