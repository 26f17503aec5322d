"""Arranged channels: results of ONNX Runtime, MACs, and images that keep their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.networks import generate
from amaranth_vta.session import Session
from amaranth_vta.session.compilation import open_network
from amaranth_vta.sw.compiler.graph.channel_order.arranged_network import with_arranged_channels
from amaranth_vta.sw.compiler.graph.macs import macs
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from amaranth_vta.sw.runtime.network.tile_layout import Array
from tests.support.channel_graphs import channel_graph

Make = Callable[..., Any]


def arranged(model: onnx.ModelProto, config: str) -> tuple[Network, Network]:
    network, _ = open_network(model, 1)
    return network, with_arranged_channels(network, PRESETS[config])


def results(network: Network, inputs: dict[str, Array]) -> dict[str, Array]:
    session = exact_session(network.to_onnx().SerializeToString())
    return run_session(session, network.outputs, inputs)


@pytest.mark.parametrize("config", ["tiny-extended", "pynq-extended"])
def test_results_are_those_of_the_network_in_onnx_runtime(config: str) -> None:
    changed = 0
    for seed in range(40):
        graph = channel_graph(seed)
        network, other = arranged(graph.model(), config)
        inputs = {"x": graph.images()}
        expected = results(network, inputs)
        for name, values in results(other, inputs).items():
            np.testing.assert_array_equal(values, expected[name], f"seed {seed}")
        known = {node.name: macs(network, node) for node in network.nodes}
        assert all(macs(other, node) == known.get(node.name, 0) for node in other.nodes)
        changed += other is not network
    assert changed > 20


def test_a_network_is_not_modified() -> None:
    network, _ = open_network(channel_graph(2).model(), 1)
    before = network.to_onnx().SerializeToString(deterministic=True)
    assert with_arranged_channels(network, PRESETS["tiny-extended"]) is not network
    assert network.to_onnx().SerializeToString(deterministic=True) == before
    assert not network.macs


def test_a_shufflenet_selects_channels_nowhere() -> None:
    network = generate("shufflenet", 96, 0.5)
    with Session(network.model, "pynq-extended") as session:
        layers = session.layers
    operators = {item.operator for item in layers if item.placed_on == "machine"}
    assert {"Gather", "Slice", "Concat"}.isdisjoint(name.split("+")[0] for name in operators)


def halves(graph: Any, channels: int) -> tuple[str, str]:
    sizes, given = graph.constant([channels // 2] * 2, np.int64), graph.value
    names = f"left{len(graph.nodes)}", f"right{len(graph.nodes)}"
    graph.nodes.append(onnx.helper.make_node("Split", [given, sizes], names, axis=1))
    return names


def test_a_half_of_what_an_addition_reads_is_read_in_tiles_with_zero_weights(qdq: Make) -> None:
    """The addition needs the network's order, and a convolution ignores the other channels."""
    graph = qdq((1, 3, 8, 8)).qdq(0.03).conv(3, 14, 1).qdq(0.9)
    whole = graph.value
    _, graph.value = halves(graph, 14)
    graph.conv(7, 14, 1).qdq(0.9).node("Add", whole).qdq(1.7)
    assert graph.on_machine() == ["QLinearConv", "QLinearConv+Add"]


def test_outputs_keep_the_order_of_the_network(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(0.03).conv(3, 14, 1).qdq(0.9)
    left, right = halves(graph, 14)
    graph.value = right
    graph.node("Concat", left, axis=1).qdq(0.9)
    assert graph.on_machine()[0] == "QLinearConv"


def test_repeated_channels_are_selected(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(0.03).conv(3, 10, 1).qdq(0.9)
    graph.node("Gather", graph.constant([7, 1, 0, 7, 3], np.int64), axis=1).conv(5, 4, 1).qdq(0.8)
    assert graph.on_machine() == ["QLinearConv", "Gather", "QLinearConv"]


@pytest.mark.parametrize("config", ["tiny", "batch2"])
def test_machines_that_cannot_read_what_they_store_keep_the_network(qdq: Make, config: str) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(0.03).conv(3, 14, 1).qdq(0.9)
    _, graph.value = halves(graph, 14)
    graph.conv(7, 4, 1).qdq(0.9)
    network, other = arranged(graph.model(), config)
    same = PRESETS[config].block_in == PRESETS[config].block_out
    assert (other is network) is not same
