"""Random graphs of fused layers: every element equals ONNX Runtime's, and no token is missing.

``benchmarks/fused_graphs.py`` runs more of them.
"""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.session import Session
from amaranth_vta.sim.model.device import FunctionalDevice
from tests.support.fused_graphs import fused_graph
from tests.support.seeds import each_seed
from tests.support.step_chains import step_chain


def assert_exact(seed: int, config: str, device: str) -> set[str]:
    """The operators of the layers."""
    network = fused_graph(seed)
    with Session(network.model(), config, device) as session:
        report = session.check({"x": network.images(1)})
        assert report.elements
        assert report.histogram == {}
        return {layer.operator for layer in session.layers if layer.placed_on == "machine"}


def test_random_fused_graphs_are_exact() -> None:
    operators: set[str] = set()
    for seed in range(40):
        try:
            operators |= assert_exact(seed, "tiny-extended", "functional")
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
    block = "QLinearConv+QLinearConv+QLinearConv"
    assert operators >= {"QLinearConv+MaxPool", "QLinearConv+Add", "MaxPool", block, f"{block}+Add"}


def test_random_chains_of_steps_are_exact() -> None:
    operators: set[str] = set()
    for seed in range(60):
        graph = step_chain(seed)
        with Session(graph.model(), "tiny-extended") as session:
            report = session.check({"x": graph.images()})
            operators |= {item.operator for item in session.layers if item.placed_on == "machine"}
        assert report.histogram == {}, f"seed {seed}"
    assert max(operator.count("+") for operator in operators) > 4


@pytest.mark.parametrize("config", ["tiny-extended", "pynq-extended"])
@each_seed(range(40, 43))
def test_random_fused_graphs_are_exact_on_rtl(seed: int, config: str) -> None:
    assert_exact(seed, config, "rtl")


@each_seed(range(43, 49))
def test_tokens_order_random_fused_graphs(seed: int) -> None:
    network = fused_graph(seed)
    model, inputs = network.model(), {"x": network.images(1)}
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
