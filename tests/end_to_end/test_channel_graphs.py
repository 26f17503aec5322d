"""Random graphs with shuffled, split, selected and concatenated channels: every element equals ONNX
Runtime's, and no token is missing.

``benchmarks/fused_graphs.py --channels`` runs more of them.
"""

from __future__ import annotations

from amaranth_vta.networks import generate
from amaranth_vta.session import Session
from tests.support.channel_graphs import channel_graph
from tests.support.exact_graphs import check_exact, check_tokens
from tests.support.seeds import each_seed


@each_seed(range(30), daily=12)
def test_random_graphs_of_channels_are_exact(seed: int) -> None:
    check_exact(channel_graph(seed), "tiny-extended")


@each_seed(range(30, 36))
def test_random_graphs_of_channels_are_exact_in_larger_tiles(seed: int) -> None:
    check_exact(channel_graph(seed), "pynq-extended")


@each_seed(range(40, 43))
def test_random_graphs_of_channels_are_exact_on_rtl(seed: int) -> None:
    check_exact(channel_graph(seed), "tiny-extended", "rtl")


def test_a_small_shufflenet_is_exact_on_rtl() -> None:
    network = generate("shufflenet", 32, 0.125)
    with Session(network.model, "tiny-extended", "rtl") as session:
        report = session.check(network.inputs)
        operators = [item.operator for item in session.layers if item.placed_on == "machine"]
    assert report.elements
    assert report.histogram == {}
    assert len(operators) > 40


@each_seed(range(43, 49), daily=2)
def test_tokens_order_random_graphs_of_channels(seed: int) -> None:
    check_tokens(channel_graph(seed), seed)
