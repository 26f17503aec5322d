"""Einsum of two tensors as matrix products, against the file's Einsum in ONNX Runtime."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from amaranth_vta.session import Session, random_inputs
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from tests.support.quantized_forms import floats, qdq

AROUND = {"Neg", "QuantizeLinear", "DequantizeLinear", "Reshape", "Transpose", "Slice", "layout"}


def written(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))


def run(equation: str, first: str, second: str, before: str, elements: int) -> None:
    """Check Einsum of tensors that ``before`` computes from q, and compare it with the file's."""
    text = qdq("q", "x", 0.03) + before + f'e = Einsum<equation="{equation}">({first}, {second})'
    model = floats(text + qdq("y", "e", 0.2), (elements,))
    with Session(model, "tiny-extended") as session:
        inputs = random_inputs(session)
        report = session.check(inputs)
        layers = session.layers
    assert report.mismatches == 0
    wanted = run_session(exact_session(model.SerializeToString()), ["y"], inputs)["y"]
    assert report.outputs["y"].shape == wanted.shape
    # The sums are whole here and rounded there.
    np.testing.assert_allclose(report.outputs["y"], wanted, atol=0.21)
    assert (report.outputs["y"] != wanted).mean() < 0.05
    machine = {layer.operator for layer in layers if layer.placed_on == "machine"}
    assert machine & {"QLinearConv", "QLinearMatMul"}
    assert {layer.operator for layer in layers if layer.placed_on == "host"} <= AROUND


@pytest.mark.parametrize(
    ("equation", "shape", "constant", "scales"),
    [
        ("bij,jk->bik", (2, 5, 8), (8, 6), "c(0.01)"),
        ("bij,kj->bik", (2, 5, 8), (6, 8), "c(0.01)"),
        ("bij,kj->bik", (2, 5, 8), (6, 8), "v(6)"),
        ("ij,jk", (4, 8), (8, 5), "c(0.01)"),
        ("...d,dh->...h", (2, 3, 8), (8, 4), "c(0.01)"),
        ("nhd,hdo->no", (5, 2, 8), (2, 8, 6), "c(0.01)"),
        ("nchw,rc->nrhw", (2, 8, 3, 3), (6, 8), "v(6)"),
        ("bhid,hdo->bio", (2, 3, 4, 8), (3, 8, 6), "c(0.01)"),
        ("bi,j->bij", (3, 4), (5,), "c(0.01)"),
    ],
)
@pytest.mark.parametrize("constant_first", [False, True])
def test_a_product_with_a_constant_is_on_the_machine(
    equation: str,
    shape: tuple[int, ...],
    constant: tuple[int, ...],
    scales: str,
    constant_first: bool,
) -> None:
    before = f"a = Reshape(q, i({written(shape)}))"
    before += f"m = DequantizeLinear<axis=0>(k({written(constant)}), {scales}) "
    names = ["a", "m"]
    if constant_first:
        terms, arrow, result = equation.partition("->")
        equation = ",".join(terms.split(",")[::-1]) + arrow + result
        names.reverse()
    if not (constant_first and "->" not in equation):
        run(equation, names[0], names[1], before, prod(shape))


@pytest.mark.parametrize(
    ("equation", "first", "second"),
    [
        ("bhid,bhjd->bhij", (2, 2, 4, 8), (2, 2, 4, 8)),
        ("bqhd,bkhd->bhqk", (2, 3, 2, 8), (2, 3, 2, 8)),
        ("bhqk,bkhd->bqhd", (2, 2, 3, 5), (2, 5, 2, 3)),
        ("...ij,...jk->...ik", (3, 4, 8), (3, 8, 2)),
        ("bij,bjk->kib", (2, 3, 4), (2, 4, 3)),
        ("bij,bj->bi", (3, 4, 8), (3, 8)),
        ("bi,bi->b", (3, 8), (3, 8)),
    ],
)
def test_a_product_of_two_tensors_is_on_the_machine(
    equation: str, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    elements = max(prod(first), prod(second))
    before = "n = Neg(x)" + qdq("r", "n", 0.03)
    for name, source, shape in (("a", "q", first), ("b", "r", second)):
        before += f"{name}0 = Slice({source}, i(0), i({prod(shape)}), i(0))"
        before += f"{name} = Reshape({name}0, i({written(shape)}))"
    run(equation, "a", "b", before, elements)
