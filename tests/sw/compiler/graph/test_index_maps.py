"""Which tensors have the same elements in the same order."""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

from amaranth_vta.sw.compiler.graph.index_maps import in_same_order
from amaranth_vta.sw.compiler.graph.network import Network


def network(shape: str, nodes: str) -> Network:
    """A network from ``x`` of a ``shape`` to ``y``."""
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
        g (int8[{shape}] x) => (int8[N] y)
        <int64[1] flat = {{-1}}, int64[1] zero = {{0}}, int8[2, 3] w = {{0, 0, 0, 0, 0, 0}}>
        {{ {nodes} y = Reshape(last, flat) }}"""
    model = parser.parse_model(text)
    onnx.checker.check_model(model)
    return Network.from_onnx(onnx.shape_inference.infer_shapes(model))


@pytest.mark.parametrize(
    ("shape", "order", "keeps"),
    [
        ((1, 1, 6, 48), (0, 2, 1, 3), True),
        ((1, 6, 1, 48), (2, 0, 3, 1), False),
        ((1, 6, 1, 48), (2, 1, 3, 0), True),
        ((1, 2, 6, 48), (0, 2, 1, 3), False),
        ((1, 6, 1), None, True),
        ((2, 3), None, False),
    ],
)
def test_a_transpose_of_dimensions_of_one_keeps_the_order(
    shape: tuple[int, ...], order: tuple[int, ...] | None, keeps: bool
) -> None:
    given = ", ".join(map(str, shape))
    attributes = "" if order is None else f"<perm = {[*order]}>"
    views = "a = Unsqueeze(x, zero) b = Squeeze(a, zero)"
    found = in_same_order(network(given, f"{views} last = Transpose{attributes}(b)"), "y")
    assert found == (["y", "last", "b", "a", "x"] if keeps else ["y", "last"])


@pytest.mark.parametrize("node", ["Neg(x)", "Concat<axis = 0>(x, w)", "Slice(x, zero, zero)"])
def test_other_operators_make_other_elements(node: str) -> None:
    assert in_same_order(network("2, 3", f"last = {node}"), "y") == ["y", "last"]
