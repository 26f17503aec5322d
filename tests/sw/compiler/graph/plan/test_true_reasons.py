"""Reasons are facts: each is checked against the network, and true in variations."""

from __future__ import annotations

import pytest

from amaranth_vta.session import Session, random_inputs
from tests.support.branching_forms import decided
from tests.support.constant_forms import half_scales, moved_weights, small_weights
from tests.support.quantized_forms import FORMS, IMAGE, Shape, floats, matrix, qdq
from tests.support.true_reasons import falsehood

ALL = {**FORMS, **moved_weights(), **small_weights(), **half_scales(), **decided()}

GIVEN = qdq("a", "x", 0.03)
WEIGHTS = matrix("m", "k(8,8,1,1)")
LAYER = GIVEN + WEIGHTS + "b = Conv(a, m)" + qdq("d", "b", 0.05)
# A product of two rows: r is in float.
ROWS = "a = Constant<value_float=1.0>() r = MatMul(x, w(24,24)) "
NORM = "DequantizeLinear<axis=0>(j(24), small(24))"
AS_IT_IS = " y = Relu({}) "
END = qdq("y", "e", 0.05)
BLOCKS = "m = DequantizeLinear<axis=1,block_size=5>(k(24,10), small(24,2))"

CASES: dict[str, tuple[str, Shape, str, str]] = {
    "a norm with a quantized bias": (
        qdq("a", "x", 0.03) + f"o = {NORM} y = LayerNormalization(a, v(24), o)",
        (3, 24),
        "LayerNormalization",
        "the machine has no LayerNormalization",
    ),
    "a norm of a product": (
        "r = MatMul(x, w(24,24)) y = LayerNormalization(r, v(24), v(24))",
        (3, 24),
        "LayerNormalization",
        "the machine has no LayerNormalization",
    ),
    "Add of a quantized bias to floats": (
        f"o = {NORM} s = Softmax(x) e = Add(s, o)" + END,
        (3, 24),
        "Add",
        "its operand s is in float",
    ),
    "a function of floats": (
        "s = Softmax(x) y = Sqrt(s)",
        (3, 24),
        "Sqrt",
        "its operand s is in float",
    ),
    "a function of an input in float": (
        "y = Sqrt(x)",
        (3, 24),
        "Sqrt",
        "its operand x is an input of the network in float",
    ),
    "a function that nothing quantizes": (
        LAYER + "e = Sqrt(d) y = Softmax(e)",
        IMAGE,
        "Sqrt",
        "its result is not quantized to 8 bits at one scale",
    ),
    "a function of a product's result": (
        GIVEN + WEIGHTS + "b = Conv(a, m) e = Sigmoid(b)" + END,
        IMAGE,
        "Sigmoid",
        "its operand b is a product's result, which nothing quantizes",
    ),
    "Pad of floats": (
        "e = Pad(x, i(0,0,1,1,0,0,1,1)) y = Relu(e)",
        IMAGE,
        "Pad",
        "its operand x is an input of the network in float",
    ),
    "Concat of floats": (
        "s = Softmax(x) y = Concat<axis=1>(s, s)",
        IMAGE,
        "Concat",
        "its operand s is in float",
    ),
    "Concat of different scales": (
        LAYER + "e = Concat<axis=1>(d, a) y = Softmax(e)",
        IMAGE,
        "Concat",
        "its result is not quantized to 8 bits at one scale",
    ),
    "a view of an input of bytes": (
        "i = Cast<to=2>(x) p = Clip(i, z(3), z(9)) y = DequantizeLinear(p, c(0.1), z(3))",
        IMAGE,
        "Clip",
        "it follows an operator on the host",
    ),
    "a pooling of rows": (
        "i = QuantizeLinear(x, c(0.03), z(120)) e = MaxPool<kernel_shape=[2,2,2]>(i)"
        "y = DequantizeLinear(e, c(0.03), z(120))",
        (1, 4, 4, 4, 4),
        "MaxPool",
        "its images have 3 dimensions; the machine's have two",
    ),
    "weights in blocks of outputs": (
        GIVEN + BLOCKS + "b = MatMul(a, m)" + qdq("y", "b", 0.05),
        (3, 24),
        "MatMul",
        "MatMul is in float: its second factor has a scale for each block of 5 elements",
    ),
    "weights in float": (
        GIVEN + "e = Conv(a, w(8,8,1,1))" + END,
        IMAGE,
        "Conv",
        "Conv is in float: its weights are constants in float",
    ),
    "weights that are computed": (
        GIVEN + matrix("n", "k(8,8,1,1)") + "m = Sin(n) e = Conv(a, m)" + END,
        IMAGE,
        "Conv",
        "Conv is in float: its weights come from Sin in float",
    ),
    "weights of int16": (
        GIVEN + "m = DequantizeLinear(h(3), c(0.1)) n = Expand(m, i(8,8,1,1)) e = Conv(a, n)" + END,
        IMAGE,
        "Conv",
        "Conv is in float: its weights are of int16, not int8 or uint8",
    ),
    "scales of inputs, not of results": (
        GIVEN + "m = DequantizeLinear<axis=0>(k(24,10), small(24)) e = MatMul(a, m)" + END,
        (3, 24),
        "MatMul",
        "its weights have scales along axis 0, not of their outputs",
    ),
    "a bias that is computed": (
        GIVEN + WEIGHTS + "s = ReduceSum<keepdims=0>(x, i(0,2,3)) e = Conv(a, m, s)" + END,
        IMAGE,
        "Conv",
        "its bias is computed by the network, not constant",
    ),
    "an activation of int16": (
        "i = QuantizeLinear(x, c(0.001), h(0)) a = DequantizeLinear(i, c(0.001), h(0))"
        + WEIGHTS
        + "e = Conv(a, m)"
        + END,
        IMAGE,
        "Conv",
        "Conv is in float: its input is of int16, not int8 or uint8",
    ),
    "a scale that is computed": (
        "t = ReduceMax<keepdims=0>(x) s = Abs(t) i = QuantizeLinear(x, s, z(0))"
        "a = DequantizeLinear(i, s, z(0))" + WEIGHTS + "e = Conv(a, m)" + END,
        IMAGE,
        "Conv",
        "Conv is in float: its input has a scale that is known only at run time",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_reason_is_true(name: str) -> None:
    text, shape, operator, reason = CASES[name]
    with Session(floats(text, shape, 21), "tiny-extended") as session:
        assert session.check(random_inputs(session)).ok
        reasons = [item.reason for item in session.layers if item.operator == operator]
        assert reason in reasons
        assert not falsehoods(session)


@pytest.mark.parametrize("name", ALL)
def test_the_reasons_of_a_form_are_true(name: str) -> None:
    """On a machine without extensions, where the host runs most operators of a form."""
    with Session(ALL[name].make(), "tiny") as session:
        assert not falsehoods(session)


def falsehoods(session: Session) -> list[tuple[str, str]]:
    """Operators on the host with the false claims in their reasons."""
    network = session.network
    nodes = {node.name: node for node in network.nodes}
    found = []
    for item in session.layers:
        if item.placed_on == "host" and item.name in nodes:
            wrong = falsehood(network, nodes[item.name], item.reason)
            found += [(item.name, wrong)] if wrong else []
    return found
