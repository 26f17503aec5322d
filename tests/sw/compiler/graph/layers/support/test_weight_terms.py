"""Weights of several terms, of one term with row sums, or of 4 bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.layers.support.weight_terms import fastest, shared_part
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import PerChannelScale
from amaranth_vta.sw.compiler.operators.dense import Dense
from amaranth_vta.sw.compiler.tuner.workload import choose
from tests.sw.compiler.graph.conftest import Qdq


@pytest.mark.parametrize("least", [-255, -200, -128, 0, 1])
@pytest.mark.parametrize("most", [1, 127, 160, 255])
def test_a_shared_part_leaves_int8(least: int, most: int) -> None:
    fitting = [
        part
        for part in range(-128, 128)
        if -128 <= least - part <= 127 and -128 <= most - part <= 127
    ]
    assert shared_part(least, most) == min(fitting, key=abs, default=None)


def row_sums(graph: Qdq, config: str = "tiny-extended", device: str = "functional") -> int:
    """Check the network; return the number of layers with row sums."""
    with Session(graph.model(), config, device) as session:
        report = session.check({"x": graph.images()})
        assert report.histogram == {}
        assert np.unique(report.outputs["y"]).size > 3
        names = [buffer.name for buffer in session.program.program.buffers]
    return sum(name.endswith("row_weights") for name in names)


def convolved(zero: Any, scale: Any = 2**-6, outputs: int = 28, **attributes: Any) -> Qdq:
    graph = Qdq((1, 8, 9, 9)).qdq(0.031, 3)
    graph.node("Conv", graph.weights(outputs, 8, 3, 3, scale=scale, zero=zero), **attributes)
    return graph.qdq(0.9, 3)


@pytest.mark.parametrize("device", ["functional", "rtl"])
@pytest.mark.parametrize(
    "attributes", [{}, {"pads": [1, 0, 1, 1], "strides": [2, 2]}, {"dilations": [1, 2]}]
)
@pytest.mark.parametrize("zero", [90, -70])
def test_zero_points_of_a_convolution_become_row_sums(
    zero: int, attributes: dict[str, Any], device: str
) -> None:
    assert row_sums(convolved(zero, **attributes), device=device) == 1


def test_row_sums_of_a_first_layer_are_of_packed_pixels() -> None:
    graph = Qdq((1, 3, 9, 9)).qdq(0.031, 3)
    graph.node("Conv", graph.weights(12, 3, 3, 3, zero=60), pads=[1, 1, 1, 1]).qdq(0.9, 3)
    assert row_sums(graph) == 1


def test_zero_points_of_a_matrix_become_row_sums() -> None:
    graph = Qdq((6, 24)).qdq(0.031, 3)
    graph.node("MatMul", graph.weights(24, 20, zero=60)).qdq(0.9, 3)
    assert row_sums(graph) == 1


def test_steps_and_whole_sums_follow_row_sums() -> None:
    graph = convolved(60, outputs=8)
    branch = graph.value
    graph.node("Conv", graph.weights(8, 8, 3, 3, zero=60), pads=[1] * 4).qdq(0.9, 3)
    graph.node("Add", branch).qdq(0.9, 3).node("Sigmoid").qdq(1 / 256, -128)
    graph.node("Conv", graph.weights(12, 8, 3, 3, zero=60))
    assert row_sums(graph) == 3


def test_few_products_take_several_terms() -> None:
    graph = Qdq((1, 4, 9, 9)).qdq(0.031, 3)
    graph.node("Conv", graph.weights(4, 4, 1, 1, zero=60)).qdq(0.9, 3)
    assert row_sums(graph) == 0


def test_small_zero_points_need_no_row_sums() -> None:
    assert row_sums(convolved(20)) == 0


def test_channels_without_a_shared_part_take_several_terms() -> None:
    zeros = np.resize([-70, 70], 28)
    assert row_sums(convolved(zeros, np.full(28, 2**-6))) == 0
    assert row_sums(convolved(abs(zeros) - np.arange(28) // 2, np.full(28, 2**-6))) == 1


@pytest.mark.parametrize("device", ["functional", "rtl"])
@pytest.mark.parametrize("bound", [8, 9])
def test_weights_that_fit_4_bits_are_packed_in_bus_bound_products(bound: int, device: str) -> None:
    """In two layers: the second one's weights follow the first one's in the scratchpad."""
    graph = Qdq((1, 24)).qdq(0.031, 3)
    graph.node("MatMul", graph.weights(24, 20, bound=bound)).qdq(0.05, 3)
    graph.node("MatMul", graph.weights(20, 24, bound=bound)).qdq(0.05, 3)
    with Session(graph.model(), "tiny-extended", device) as session:
        report = session.check({"x": graph.images()})
        assert report.histogram == {}
        assert np.unique(report.outputs["y"]).size > 3
        found = {buffer.name: buffer.size for buffer in session.program.program.buffers}
    sizes = [size for name, size in found.items() if name.endswith("weights")]
    plain = [24 * 20, 20 * 24]
    assert sizes == ([size // 2 for size in plain] if bound == 8 else plain)


def test_packed_weights_take_half_the_cycles_of_a_bus_bound_product() -> None:
    config = PRESETS["pynq-extended"]
    plain = Dense(1, 64, 64, PerChannelScale(), is_first=True)
    packed = fastest(plain, -8, 7, config)
    assert packed.int4_weights
    assert choose(packed, config).cycles < 0.52 * choose(plain, config).cycles
    assert fastest(plain, -9, 7, config) == fastest(plain, -8, 8, config) == plain
    assert fastest(plain, -8, 7, replace(config, wgt_4bit=0)) == plain
    # Many rows make the product compute-bound, so that packing gains nothing.
    many = replace(plain, rows=256, is_first=False)
    assert choose(fastest(many, -8, 7, config), config).cycles <= choose(many, config).cycles
