"""Random graphs with shuffled, split, selected and concatenated channels: every element equals ONNX
Runtime's, and no token is missing.

``benchmarks/fused_graphs.py --channels`` runs more of them.
"""

from __future__ import annotations

import numpy as np

from amaranth_vta.networks import generate
from amaranth_vta.session import Session
from amaranth_vta.sim.model.device import FunctionalDevice
from tests.support.channel_graphs import channel_graph
from tests.support.seeds import each_seed


def assert_exact(seed: int, config: str, device: str) -> None:
    graph = channel_graph(seed)
    with Session(graph.model(), config, device) as session:
        report = session.check({"x": graph.images()})
    assert report.elements
    assert report.histogram == {}


@each_seed(range(30))
def test_random_graphs_of_channels_are_exact(seed: int) -> None:
    assert_exact(seed, "tiny-extended", "functional")


@each_seed(range(30, 36))
def test_random_graphs_of_channels_are_exact_in_larger_tiles(seed: int) -> None:
    assert_exact(seed, "pynq-extended", "functional")


@each_seed(range(40, 43))
def test_random_graphs_of_channels_are_exact_on_rtl(seed: int) -> None:
    assert_exact(seed, "tiny-extended", "rtl")


def test_a_small_shufflenet_is_exact_on_rtl() -> None:
    network = generate("shufflenet", 32, 0.125)
    with Session(network.model, "tiny-extended", "rtl") as session:
        report = session.check(network.inputs)
        operators = [item.operator for item in session.layers if item.placed_on == "machine"]
    assert report.elements
    assert report.histogram == {}
    assert len(operators) > 40


@each_seed(range(43, 49))
def test_tokens_order_random_graphs_of_channels(seed: int) -> None:
    graph = channel_graph(seed)
    model, inputs = graph.model(), {"x": graph.images()}
    with Session(model, "tiny-extended") as session:
        expected = session.run(inputs)
        config, size = session.config, session.device.memory_bytes
    device = FunctionalDevice(
        config, size, f"random:{seed}", report_races=True, report_false_claims=True
    )
    with Session(model, "tiny-extended", device) as session:
        for name, values in session.run(inputs).items():
            np.testing.assert_array_equal(values, expected[name])
    assert not device.races
    assert not device.false_claims
