"""Every reason for running an operator on the host, except those of averages, functions and
products, each provoked by a small network written as text.
"""

from __future__ import annotations

import pytest

from amaranth_vta.session import Session, random_inputs
from tests.support.quantized_forms import IMAGE, Shape, floats, matrix, qdq

GIVEN = qdq("a", "x", 0.03)
WEIGHTS = matrix("m", "k(8,8,1,1)")
# d is the result of a layer.
LAYER = GIVEN + WEIGHTS + "b = Conv(a, m)" + qdq("d", "b", 0.05)
# The shape of a is known only at run time.
UNKNOWN = qdq("g", "x", 0.03) + "t = Compress<axis=2>(g, o(1,1,0,1))" + qdq("a", "t", 0.03)
INTEGERS = "y = DequantizeLinear(e, c(0.05), z(120))"
FLOATS = qdq("y", "e", 0.04)
AT = "c(0.05), z(120)"
SUMS = qdq("y", "b", 0.5)
POOL = "e = com.microsoft.{}<channels_last=1{}>(d_integers, " + f"{AT}, {AT})" + INTEGERS
GEMM = "e = com.microsoft.QGemm{}(a_integers, c(0.03), z(120), k(24,10), c(0.01), n(0), {}, " + AT
ROWS: Shape = (3, 24)

CASES: list[tuple[str, str, Shape, str]] = [
    (
        *("Conv", GIVEN + "b = Conv<pads=[1,1,1,1]>(a, a)" + qdq("y", "b", 0.5), (8, 8, 3, 3)),
        "its weights are computed by the network, not constant",
    ),
    (
        "ConvTranspose",
        GIVEN + "b = ConvTranspose(a, a)" + qdq("y", "b", 0.5),
        (8, 8, 3, 3),
        "its weights are computed by the network, not constant",
    ),
    (
        "Conv",
        GIVEN + "m = DequantizeLinear<axis=1>(k(8,8,1,1), v(8)) b = Conv(a, m)" + SUMS,
        *(IMAGE, "its weights have scales along axis 1, not of their outputs"),
    ),
    (
        "MatMul",
        GIVEN + "m = DequantizeLinear<axis=0>(k(24,10), v(24)) b = MatMul(a, m)" + SUMS,
        *(
            (3, 24),
            "its weights have scales along axis 0, not of their outputs",
        ),
    ),
    (
        "MatMul",
        GIVEN + "m = DequantizeLinear<axis=2>(k(3,24,10), v(10)) b = MatMul(a, m)" + SUMS,
        (3, 5, 24),
        "its second factor is no constant matrix and has more than one scale",
    ),
    (
        "Conv",
        GIVEN + WEIGHTS + "s = ReduceSum<keepdims=0>(x, i(0,2,3)) b = Conv(a, m, s)" + SUMS,
        *(IMAGE, "its bias is computed by the network, not constant"),
    ),
    (
        "Gemm",
        GIVEN + matrix("m", "k(24,8)") + "b = Gemm<alpha=-1.0>(a, m)" + SUMS,
        *((3, 24), "its alpha is -1 and its beta 1"),
    ),
    (
        "Sum",
        LAYER
        + "f = Sigmoid(d)"
        + qdq("g", "f", 0.004, 0)
        + "s = Sum(a, d, g)"
        + qdq("y", "s", 0.07),
        *(IMAGE, "it rounds the sum of 3 tensors once; the machine adds two"),
    ),
    (
        "Max",
        LAYER + "s = Max(a, d, c(0.1))" + qdq("y", "s", 0.07),
        *(IMAGE, "one of its operands is a constant"),
    ),
    (
        "Einsum",
        GIVEN + matrix("m", "k(24,8)") + 'e = Einsum<equation="bij,jk->bk">(a, m)' + FLOATS,
        *((3, 4, 24), "bij,jk->bk is no product of two matrices"),
    ),
    (
        *("Conv", UNKNOWN + WEIGHTS + "b = Conv(a, m)" + qdq("y", "b", 0.5), IMAGE),
        "Conv is in float: the shape of its input is not known",
    ),
    (
        "Conv",
        "e = QuantizeLinear<axis=1>(x, v(8)) a = DequantizeLinear<axis=1>(e, v(8))"
        + (WEIGHTS + "b = Conv(a, m)" + qdq("y", "b", 0.5)),
        IMAGE,
        "Conv is in float: its input has more than one scale",
    ),
    (
        "Conv",
        "e = QuantizeLinear(x, c(0.03), z(120)) a = DequantizeLinear(e, c(-0.03), z(120))"
        + (WEIGHTS + "b = Conv(a, m)" + qdq("y", "b", 0.5)),
        IMAGE,
        "Conv is in float: its input has a scale of -0.03, which is negative",
    ),
    (
        "ConvTranspose",
        GIVEN + matrix("m", "k(8,8,2,2)") + "b = ConvTranspose(a, m)"
        "e = QuantizeLinear<axis=1>(b, v(8)) y = DequantizeLinear<axis=1>(e, v(8))",
        IMAGE,
        "ConvTranspose is in float: its result has more than one scale",
    ),
    (
        "ConvTranspose",
        GIVEN + matrix("m", "k(8,8,2,2)") + "b = ConvTranspose(a, m)"
        "e = QuantizeLinear(b, c(0.0003), h(0)) y = DequantizeLinear(e, c(0.0003), h(0))",
        IMAGE,
        "ConvTranspose is in float: it makes int16 of uint8",
    ),
    (
        "QLinearConv",
        GIVEN + "e = QLinearConv<pads=[1,1,1,1]>(a_integers, c(0.03), z(120), a_integers, "
        f"c(0.03), z(120), {AT})" + INTEGERS,
        (8, 8, 3, 3),
        "its input a_integers is not constant",
    ),
    ("QGemm", GIVEN + GEMM.format("<alpha=2.0>", "") + ")" + INTEGERS, ROWS, "its alpha is not 1"),
    (
        *("QGemm", GIVEN + GEMM.format("", "j(3,10)") + ")" + INTEGERS, ROWS),
        "its bias differs from row to row",
    ),
    (
        "QLinearMatMul",
        GIVEN + "f = Transpose(a_integers) e = QLinearMatMul(a_integers, c(0.03), z(120), f, "
        f"v(4), u(4), {AT})" + INTEGERS,
        (4, 9),
        "a zero point is per channel, not per tensor",
    ),
    (
        "QLinearMatMul",
        UNKNOWN + "f = Transpose<perm=[0,1,3,2]>(a_integers) e = QLinearMatMul(a_integers, "
        f"c(0.03), z(120), f, c(0.03), z(120), {AT})" + INTEGERS,
        IMAGE,
        "the shapes of its factors are known only at run time",
    ),
    (
        "QLinearGlobalAveragePool",
        LAYER + POOL.format("QLinearGlobalAveragePool", ""),
        *(IMAGE, "its layout is channels last"),
    ),
    (
        "QLinearAveragePool",
        LAYER + POOL.format("QLinearAveragePool", ",kernel_shape=[2,2]"),
        *(IMAGE, "its layout is channels last"),
    ),
    (
        *("GlobalAveragePool", GIVEN + "e = GlobalAveragePool(a)" + FLOATS, (1, 4, 3, 3, 3)),
        "a has the shape (1, 4, 3, 3, 3), not that of images or sequences",
    ),
    (
        "Pad",
        LAYER + "r = ReduceMax<keepdims=0>(x) s = Cast<to=7>(r) t = Mul(s, i(0,0,1,0,0,0,0,0))"
        "e = Pad(d_integers, t)" + INTEGERS,
        *(IMAGE, "where it moves elements is known only at run time"),
    ),
    (
        *("Slice", GIVEN + "e = Slice(a_integers, i(1), i(9), i(2), i(3))" + INTEGERS, IMAGE),
        "it follows an operator on the host",
    ),
    (
        "MaxPool",
        LAYER + "e, f = MaxPool<kernel_shape=[2,2]>(d_integers) g = Cast<to=1>(f)"
        "z = ReduceMax(g) w = DequantizeLinear(e, c(0.05), z(120)) y = Add(w, z)",
        *(IMAGE, "it also returns the indices of the maxima"),
    ),
    (
        "Concat",
        LAYER + "f = Flatten(d_integers) e = Concat<axis=1>(f, f)" + INTEGERS,
        IMAGE,
        "channels change their places within tiles in 80,000 products per pixel, whose weights do "
        "not fit the machine, which holds 64",
    ),
    (
        "Concat",
        GIVEN + "e = Concat<axis=1>(a_integers, a_integers)" + INTEGERS,
        *((1, 4, 3, 3, 3), "its result has 5 dimensions, and the machine holds two to four"),
    ),
    (
        "Transpose",
        UNKNOWN + "e = Transpose<perm=[0,2,3,1]>(a_integers)" + INTEGERS,
        *(IMAGE, "its shape is not fixed"),
    ),
    (
        "Clip",
        LAYER + "e = Clip(d_integers, z(90), z(30))" + INTEGERS,
        *(IMAGE, "its bounds are not two constants, the lower one first"),
    ),
    (
        *("Max", LAYER + "e = Max(d_integers, d_integers)" + INTEGERS, IMAGE),
        "it is not of two tensors",
    ),
    (
        *("Add", LAYER + "e = Add(d, w(1,8,1,10))" + FLOATS, IMAGE),
        "Add of one tensor: its constants differ within a channel",
    ),
    (
        *("Add", LAYER + "e = Add(d, w(2,8,1,1))" + FLOATS, (2, 8, 5, 5)),
        "Add of one tensor: its constants are neither one nor one per channel",
    ),
    (
        "Elu",
        GIVEN + "t = Elu(a) u = Sub(t, c(0.31)) f = Mul(u, c(100000000)) e = Sin(f)" + FLOATS,
        IMAGE,
        "Elu, Sub, Mul, Sin of one tensor: ONNX Runtime computes it differently at the end of a "
        "tensor",
    ),
]


@pytest.mark.parametrize(("operator", "text", "shape", "reason"), CASES)
def test_the_host_has_an_operator_for_this_reason(
    operator: str, text: str, shape: Shape, reason: str
) -> None:
    with Session(floats(text, shape, 21), "tiny-extended") as session:
        assert session.check(random_inputs(session)).ok
        reasons = [item.reason for item in session.layers if item.operator == operator]
    assert reason in reasons
