"""Attention as one operator hides padding by order or by a mask; other forms are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from amaranth_vta.sw.compiler.graph.load.input_shapes import with_dimensions
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network, read_model
from amaranth_vta.sw.compiler.graph.padding.positions import equal_positions
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session
from tests.support.transformer_files import EACH, HEADS, WIDE, Graph

SHORT, LONG, OPSET = 5, 8, 23
LOWEST = float(np.finfo(np.float32).min)
# Padding with this in place of zeros, which a share of more than 0 would show.
GARBAGE = np.float32(1e15)
Build = Callable[[Graph, list[str], str], str]


def made(build: Build) -> onnx.ModelProto:
    """The network that ``build`` makes of queries, keys and values (1, sequence, WIDE), and a mask
    of their rows."""
    g = Graph()
    rows = g.normal(1, SHORT, WIDE)
    given = [g.input(name, rows, 1, "sequence", WIDE) for name in ("query", "key", "value")]
    mask = g.input("mask", np.ones((1, SHORT), np.int64), 1, "sequence")
    g.output(build(g, given, mask))
    return g.made(OPSET)[0]


def onnx_attention(g: Graph, given: list[str], mask: str, how: str = "", **more: Any) -> str:
    """Attention of ONNX with a mask of a kind."""
    heads = {"q_num_heads": HEADS, "kv_num_heads": HEADS, **more}
    operands = [*given]
    if how:
        flags = g.add("Unsqueeze", g.add("Cast", mask, to=TensorProto.BOOL), g.numbers(1, 2))
        # No query is 9, but the mask gets an axis of queries.
        shown = g.add("Equal", g.add("Unsqueeze", mask, g.numbers(1, 3)), g.numbers(9))
        square = g.add("Or", flags, shown)
        low = g.constant(np.float32(-1e4 if how == "weak" else LOWEST))
        floats = g.add("Where", square, g.constant(np.float32(0)), low)
        operands.append(square if how == "flags" else floats)
    return str(g.add("Attention", *operands, **heads))


def turned_heads(g: Graph, given: list[str], mask: str) -> str:
    """Attention of ONNX whose operands have an axis of heads."""
    heads = [
        g.add("Transpose", g.add("Reshape", item, g.numbers(0, 0, HEADS, EACH)), perm=[0, 2, 1, 3])
        for item in given
    ]
    return str(g.add("Attention", *heads, is_causal=1))


def microsoft(
    g: Graph, given: list[str], mask: str, operator: str, masked: bool = False, **how: Any
) -> str:
    short = g.add("Cast", mask, to=TensorProto.INT32) if masked else ""
    if operator == "MultiHeadAttention":
        return str(g.add("ms.MultiHeadAttention", *given, "", short, num_heads=HEADS, **how))
    weights = g.constant(g.normal(WIDE, 3 * WIDE))
    bias = g.constant(np.zeros(3 * WIDE, np.float32))
    return str(g.add("ms.Attention", given[0], weights, bias, short, num_heads=HEADS, **how))


def group_query(
    g: Graph, given: list[str], mask: str, past: int = 0, count: str = "mask", total: int = 0
) -> str:
    cache = [g.constant(np.zeros((1, HEADS, past, EACH), np.float32)) for _ in range(2)]
    rows = g.add("Gather", g.add("Shape", mask), g.constant(np.array(1, np.int64)))
    length = rows if count == "rows" else g.add("ReduceSum", mask, g.numbers(1), keepdims=0)
    if count == "rows":
        length = g.add("Unsqueeze", length, g.numbers(0))
    last = g.add("Cast", g.add("Sub", length, g.numbers(1)), to=TensorProto.INT32)
    whole = g.add("Cast", g.add("Add", rows, g.constant(np.int64(total))), to=TensorProto.INT32)
    how = {"num_heads": HEADS, "kv_num_heads": HEADS, "outputs": 3}
    return str(g.add("ms.GroupQueryAttention", *given, *cache, last, whole, **how)[0])


CAUSAL: dict[str, Any] = {"unidirectional": 1}
ACCEPTED: dict[str, Build] = {
    "causal": partial(onnx_attention, is_causal=1),
    "causal, heads in an axis of their own": turned_heads,
    "causal with limited scores": partial(onnx_attention, is_causal=1, softcap=2.0),
    "flags": partial(onnx_attention, how="flags"),
    "lowest floats": partial(onnx_attention, how="floats"),
    "unidirectional": partial(microsoft, operator="Attention", **CAUSAL),
    "keys": partial(microsoft, operator="Attention", masked=True, mask_filter_value=LOWEST),
    "several, unidirectional": partial(microsoft, operator="MultiHeadAttention", **CAUSAL),
    "several, keys": partial(
        microsoft, operator="MultiHeadAttention", masked=True, mask_filter_value=LOWEST
    ),
    "a prompt": group_query,
    "a prompt whose length is that of its rows": partial(group_query, count="rows"),
}
REFUSED: dict[str, tuple[Build, str]] = {
    "no mask": (onnx_attention, r"no mask hides padding from \S+ \(Attention\)"),
    "weak mask": (partial(onnx_attention, how="weak"), "no mask hides padding"),
    "limited scores": (partial(onnx_attention, how="floats", softcap=2.0), "no mask hides padding"),
    "both directions": (partial(microsoft, operator="Attention"), "no mask of its keys hides"),
    "the default mask": (
        partial(microsoft, operator="MultiHeadAttention", masked=True),
        "lowers scores by 10,000, and nothing bounds them",
    ),
    "a cache": (partial(group_query, past=3, total=3), "continues a cache"),
    "another total": (partial(group_query, total=1), "number of tokens of .* is not that of"),
}


def compared(model: onnx.ModelProto) -> Any:
    read = read_model(model)
    networks = (
        load_network(with_dimensions(read, {"sequence": size}), 1) for size in (SHORT, LONG)
    )
    return equal_positions(*networks).sizes


@pytest.mark.parametrize("name", ACCEPTED)
def test_rows_without_padding_are_those_of_the_short_network(name: str) -> None:
    model = made(ACCEPTED[name])
    (sizes,) = compared(model).values()
    assert sizes in ({1: SHORT}, {2: SHORT})
    session, rng = exact_session(model.SerializeToString()), np.random.default_rng(1)
    feeds: dict[str, Any] = {
        name: rng.normal(size=(1, LONG, WIDE)).astype(np.float32)
        for name in ("query", "key", "value")
    }
    for item in feeds.values():
        item[:, SHORT:] = GARBAGE
    feeds["mask"] = (np.arange(LONG)[None] < SHORT).astype(np.int64)
    names = [item.name for item in session.get_inputs()]
    (found,) = session.run(None, {name: feeds[name] for name in names})
    (wanted,) = session.run(None, {name: feeds[name][:, :SHORT] for name in names})
    crop = tuple(slice(sizes.get(axis)) for axis in range(found.ndim))
    np.testing.assert_allclose(found[crop], wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_padding_that_may_have_a_share_is_refused(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        compared(made(build))
