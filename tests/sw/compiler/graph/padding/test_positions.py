"""Padding is accepted where no result without padding depends on it, and refused elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from amaranth_vta.sw.compiler.graph.load.input_shapes import with_dimensions
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network, read_model
from amaranth_vta.sw.compiler.graph.padding.positions import equal_positions
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session
from tests.support.transformer_files import Feeds, Graph

SHORT, LONG, WIDE = 5, 8, 4
LOWEST = float(np.finfo(np.float32).min)
Build = Callable[[Graph, str, str], str]


def made(build: Build, length: int = SHORT, opset: int = 17) -> tuple[onnx.ModelProto, Feeds]:
    """The network that ``build`` makes of an input (1, sequence, WIDE) and a mask of its rows."""
    g = Graph()
    x = g.input("x", g.normal(1, length, WIDE), 1, "sequence", WIDE)
    mask = g.input("mask", np.ones((1, length), np.int64), 1, "sequence")
    g.output(build(g, x, mask))
    return g.made(opset)


def factor(g: Graph, mask: str) -> str:
    """The mask as floats (1, sequence, 1)."""
    return str(g.add("Unsqueeze", g.add("Cast", mask, to=TensorProto.FLOAT), g.numbers(2)))


def scores(g: Graph, x: str) -> str:
    return str(g.add("MatMul", x, g.add("Transpose", x, perm=[0, 2, 1])))


def shares_of(g: Graph, x: str, masked: str) -> str:
    return str(g.add("MatMul", g.add("Softmax", masked, axis=-1), x))


def masked_mean(g: Graph, x: str, mask: str) -> str:
    kept = factor(g, mask)
    total = g.add("ReduceSum", g.add("Mul", x, kept), g.numbers(1))
    return str(g.add("Div", total, g.add("ReduceSum", kept, g.numbers(1))))


def chosen_scores(g: Graph, x: str, mask: str) -> str:
    shown = g.add("Unsqueeze", g.add("Cast", mask, to=TensorProto.BOOL), g.numbers(1))
    return shares_of(g, x, g.add("Where", shown, scores(g, x), g.constant(np.float32(-np.inf))))


def hidden_scores(g: Graph, x: str, mask: str) -> str:
    hidden = g.add("Equal", g.add("Unsqueeze", mask, g.numbers(1)), g.numbers(0))
    return shares_of(g, x, g.add("Where", hidden, g.constant(np.float32(LOWEST)), scores(g, x)))


def length_of(g: Graph, x: str) -> str:
    return str(g.add("Slice", g.add("Shape", x), g.numbers(1), g.numbers(2)))


def causal(g: Graph, x: str, mask: str, low: float = LOWEST) -> str:
    """Attention to earlier positions, whose mask Trilu cuts from a matrix of the input's size."""
    length = length_of(g, x)
    square = g.add("Concat", length, length, axis=0)
    lowest = onnx.numpy_helper.from_array(np.array([low], np.float32))
    upper = g.add("Trilu", g.add("ConstantOfShape", square, value=lowest), g.numbers(1), upper=1)
    return shares_of(g, x, g.add("Add", scores(g, x), upper))


def causal_without_numbers(g: Graph, x: str, mask: str) -> str:
    """Rows of padding see all positions before them."""
    return causal(g, x, mask, -np.inf)


def between_tokens(g: Graph, x: str, mask: str, low: float = LOWEST) -> str:
    """Two layers of attention from tokens to tokens: rows of padding see nothing."""
    shown = g.add("Cast", mask, to=TensorProto.BOOL)
    pairs = g.add("And", *(g.add("Unsqueeze", shown, g.numbers(axis)) for axis in (1, 2)))
    for _ in range(2):
        x = shares_of(g, x, g.add("Where", pairs, scores(g, x), g.constant(np.float32(low))))
    return x


def between_tokens_without_numbers(g: Graph, x: str, mask: str) -> str:
    return between_tokens(g, x, mask, -np.inf)


def windows_without_numbers(g: Graph, x: str, mask: str) -> str:
    """Two layers of attention to the token and its predecessor: the last rows see padding only."""
    shown = g.add("Cast", g.add("Unsqueeze", mask, g.numbers(1)), to=TensorProto.FLOAT)
    hidden = g.add(
        "Mul", g.add("Sub", shown, g.constant(np.float32(1))), g.constant(np.float32(1e38))
    )
    length = length_of(g, x)
    place = g.add(
        "Range", g.constant(np.int64(0)), g.add("Squeeze", length), g.constant(np.int64(1))
    )
    rows, columns = (g.add("Unsqueeze", place, g.numbers(axis)) for axis in (1, 0))
    far = g.add("Greater", g.add("Sub", rows, columns), g.numbers(1))
    hidden = g.add(
        "Where",
        far,
        g.constant(np.float32(-np.inf)),
        g.add("Mul", hidden, g.constant(np.float32(1e10))),
    )
    for _ in range(2):
        x = shares_of(g, x, g.add("Add", scores(g, x), hidden))
    return x


def places(g: Graph, x: str, mask: str) -> str:
    table = g.add(
        "Slice", g.constant(g.normal(1, 32, WIDE)), g.numbers(0), length_of(g, x), g.numbers(1)
    )
    return str(g.add("Add", x, table))


def flattened(g: Graph, x: str, mask: str) -> str:
    rows = g.add("Reshape", x, g.numbers(-1, WIDE))
    product = g.add("Gemm", rows, g.constant(g.normal(WIDE, WIDE)))
    return str(g.add("Reshape", product, g.numbers(1, -1, 2, WIDE // 2)))


def first_row(g: Graph, x: str, mask: str) -> str:
    one = g.add("Slice", x, g.numbers(0), g.numbers(1), g.numbers(1))
    normed = g.add("LayerNormalization", x, g.constant(np.ones(WIDE, np.float32)), axis=-1)
    return str(g.add("Add", one, normed))


def running_sum(g: Graph, x: str, mask: str) -> str:
    return str(g.add("CumSum", x, g.constant(np.int64(1))))


ACCEPTED = (
    *(masked_mean, chosen_scores, hidden_scores, causal, places, flattened, first_row),
    *(running_sum, causal_without_numbers, between_tokens),
)


@pytest.mark.parametrize("build", ACCEPTED)
def test_padding_leaves_results(build: Build) -> None:
    model, feeds = made(build)
    sizes = checked(model)
    session = exact_session(model.SerializeToString())
    (name,), (expected,) = sizes, session.run(None, feeds)
    missing = LONG - SHORT
    padded = {
        "x": np.pad(feeds["x"], ((0, 0), (0, missing), (0, 0))),
        "mask": np.pad(feeds["mask"], ((0, 0), (0, missing))),
    }
    (result,) = session.run(None, padded)
    assert {axis: expected.shape[axis] for axis in sizes[name]} == sizes[name]
    crop = tuple(slice(size) for size in expected.shape)
    np.testing.assert_allclose(result[crop], expected, rtol=1e-6, atol=1e-6)


def checked(model: onnx.ModelProto) -> Mapping[str, Mapping[int, int]]:
    read = read_model(model)
    short, long = (
        load_network(with_dimensions(read, {"sequence": size}), 1) for size in (SHORT, LONG)
    )
    return equal_positions(short, long).sizes


def mean(g: Graph, x: str, mask: str) -> str:
    return str(g.add("ReduceMean", x, axes=[1]))


def last_row(g: Graph, x: str, mask: str) -> str:
    return str(g.add("Slice", x, g.numbers(-1), g.numbers(99), g.numbers(1)))


def last_gathered(g: Graph, x: str, mask: str) -> str:
    return str(g.add("Gather", x, g.constant(np.int64(-1)), axis=1))


def divided(g: Graph, x: str, mask: str) -> str:
    return str(g.add("Div", x, g.add("Cast", length_of(g, x), to=TensorProto.FLOAT)))


def joined(g: Graph, x: str, mask: str) -> str:
    return str(g.add("Concat", x, x, axis=1))


def mixed_columns(g: Graph, x: str, mask: str) -> str:
    return str(g.add("Reshape", x, g.numbers(1, WIDE, -1)))


def convolved(g: Graph, x: str, mask: str) -> str:
    turned = g.add("Transpose", x, perm=[0, 2, 1])
    return str(g.add("Conv", turned, g.constant(g.normal(WIDE, WIDE, 3)), pads=[1, 1]))


def one_scale(g: Graph, x: str, mask: str) -> str:
    integers, scale, zero = g.add("DynamicQuantizeLinear", x, outputs=3)
    return str(g.add("DequantizeLinear", integers, scale, zero))


def weak_mask(g: Graph, x: str, mask: str) -> str:
    turned = g.add("Transpose", factor(g, mask), perm=[0, 2, 1])
    off = g.add(
        "Mul", g.add("Sub", g.constant(np.float32(1)), turned), g.constant(np.float32(-1e4))
    )
    return shares_of(g, x, g.add("Add", scores(g, x), off))


def unmasked(g: Graph, x: str, mask: str) -> str:
    return shares_of(g, x, scores(g, x))


def unmasked_product(g: Graph, x: str, mask: str) -> str:
    return str(g.add("MatMul", g.add("Transpose", x, perm=[0, 2, 1]), g.add("Exp", x)))


def mask_of_indices(g: Graph, x: str, mask: str) -> str:
    """Indices may have any value, so that nothing is known of the scores that they lower."""
    rows = g.add("Gather", g.constant(g.normal(9, WIDE)), mask)
    return hidden_scores(g, str(g.add("Add", x, rows)), mask)


REFUSED = {
    mean: r"\(ReduceMean\) combines padding",
    last_row: r"\(Slice\) counts positions from the end",
    last_gathered: r"\(Gather\) takes positions that may be padding",
    divided: r"the constant \S+ of \S+ \(Div\) depends on the size",
    joined: r"\(Concat\) joins or splits positions",
    mixed_columns: r"\(Reshape\) joins positions",
    convolved: r"\(Conv\) combines padding",
    one_scale: r"\(DynamicQuantizeLinear\) combines padding",
    weak_mask: "no mask hides padding",
    unmasked: "no mask hides padding",
    mask_of_indices: "no mask hides padding",
    between_tokens_without_numbers: "hides all positions from rows of padding",
    windows_without_numbers: "hides all positions from rows of padding",
}


@pytest.mark.parametrize(("build", "message"), REFUSED.items())
def test_padding_that_reaches_results_is_refused(build: Build, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        checked(made(build)[0])


def test_a_factor_that_padding_makes_zero_hides_it() -> None:
    # Zeros stay zeros in one factor, and are 1 in the other.
    assert checked(made(unmasked_product)[0])
