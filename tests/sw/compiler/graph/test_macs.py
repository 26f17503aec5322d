"""MACs of operators that hold several products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network, read_model
from amaranth_vta.sw.compiler.graph.macs import macs
from tests.support.transformer_files import EACH, HEADS, WIDE, Graph, packed_dense

# Rows, and positions in the cache.
ROWS, PAST = 5, 3
PROJECTION = ROWS * WIDE * 3 * WIDE
SCORES_AND_VALUES = 2 * ROWS * WIDE


def counted(g: Graph, result: str, opset: int = 17) -> int:
    g.output(result)
    network = load_network(read_model(g.made(opset)[0]), 1)
    return sum(macs(network, node) for node in network.nodes)


def sequence(g: Graph, name: str, wide: int = WIDE, rows: int = ROWS) -> str:
    return g.input(name, g.normal(1, rows, wide))


def test_attention_with_its_projection() -> None:
    g = Graph()
    bias = g.constant(g.normal(3 * WIDE))
    given = sequence(g, "x"), g.weights(WIDE, 3 * WIDE), bias
    result = g.add("ms.Attention", *given, num_heads=HEADS)
    assert counted(g, result) == PROJECTION + SCORES_AND_VALUES * ROWS


def test_attention_with_a_cache() -> None:
    g = Graph()
    past = g.input("past", g.normal(2, 1, HEADS, PAST, EACH))
    bias = g.constant(g.normal(3 * WIDE))
    given = sequence(g, "x"), g.weights(WIDE, 3 * WIDE), bias, "", past
    result, _ = g.add("ms.Attention", *given, outputs=2, num_heads=HEADS)
    assert counted(g, result) == PROJECTION + SCORES_AND_VALUES * (ROWS + PAST)


def test_quantized_attention() -> None:
    g = Graph()
    weights = g.constant(g.rng.integers(-9, 9, (WIDE, 3 * WIDE)).astype(np.int8))
    scale, zero = g.constant(np.float32(0.01)), g.constant(np.int8(0))
    integers, step, point = g.add("DynamicQuantizeLinear", sequence(g, "x"), outputs=3)
    given = (integers, weights, g.constant(g.normal(3 * WIDE)), step, scale, "", point, zero)
    result = g.add("ms.QAttention", *given, num_heads=HEADS)
    assert counted(g, result) == PROJECTION + SCORES_AND_VALUES * ROWS


@pytest.mark.parametrize("keys", [ROWS, 9])
def test_attention_of_several_heads(keys: int) -> None:
    g = Graph()
    given = sequence(g, "q"), sequence(g, "k", rows=keys), sequence(g, "v", rows=keys)
    result = g.add("ms.MultiHeadAttention", *given, num_heads=HEADS)
    assert counted(g, result) == SCORES_AND_VALUES * keys


@pytest.mark.parametrize("packed", [False, True])
def test_attention_of_groups(packed: bool) -> None:
    g, few = Graph(), HEADS // 2
    sizes = [WIDE + 2 * few * EACH] if packed else [WIDE, few * EACH, few * EACH]
    given = [sequence(g, f"given{at}", size) for at, size in enumerate(sizes)]
    cache = [g.input(name, g.normal(1, few, PAST, EACH)) for name in ("keys", "values")]
    lengths = g.constant(np.array([ROWS + PAST - 1], np.int32))
    count = g.constant(np.array(ROWS + PAST, np.int32))
    result, *_ = g.add(
        "ms.GroupQueryAttention",
        *(*given, *[""] * (3 - len(given)), *cache, lengths, count),
        **{"outputs": 3, "num_heads": HEADS, "kv_num_heads": few},
    )
    assert counted(g, result) == SCORES_AND_VALUES * (ROWS + PAST)


@pytest.mark.parametrize("heads_apart", [False, True])
def test_attention_of_opset_23(heads_apart: bool) -> None:
    g, how = Graph(), {"q_num_heads": HEADS, "kv_num_heads": HEADS}
    if heads_apart:
        given = [g.input(name, g.normal(1, HEADS, ROWS, EACH)) for name in "qkv"]
        result = g.add("Attention", *given)
    else:
        result = g.add("Attention", *(sequence(g, name) for name in "qkv"), **how)
    assert counted(g, result, 23) == SCORES_AND_VALUES * ROWS


def test_packed_weights() -> None:
    g = Graph()
    assert counted(g, packed_dense(g, sequence(g, "x"), WIDE, 48)) == ROWS * WIDE * 48


@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_operators(operator: str, gates: int) -> None:
    g, hidden = Graph(), 7
    x = g.input("x", g.normal(ROWS, 2, WIDE))
    weights: list[Any] = [g.normal(1, gates * hidden, n) for n in (WIDE, hidden)]
    result = g.add(operator, x, *map(g.constant, weights), hidden_size=hidden)
    assert counted(g, result) == ROWS * 2 * gates * hidden * (WIDE + hidden)
