"""Depthwise convolutions fused with the preceding 1×1 convolution: exact, and only where
allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.tuner import workload

Make = Callable[..., Any]
MACHINE = PRESETS["pynq-extended"]
FUSED = "QLinearConv+QLinearConv"


def expanded(qdq: Make, dtype: Any = np.int8, size: int = 14, channels: int = 40) -> Any:
    """A graph with a 1×1 convolution to ``channels``."""
    low = np.iinfo(dtype).min
    graph = qdq((1, 20, size, size), dtype).qdq(0.031, low + 120).conv(20, channels, 1)
    return graph.node("Relu").qdq(0.0613, low)


def depthwise(graph: Any, channels: int = 40, size: int = 3, **attributes: Any) -> Any:
    weights = graph.weights(channels, 1, size, size)
    attributes = {"pads": [1, 1, 1, 1], "strides": [1, 1]} | attributes
    bias = graph.bias(channels, graph.scale * 2**-6)
    return graph.node("Conv", weights, bias, group=channels, **attributes)


def placed(graph: Any, config: Config = MACHINE) -> list[tuple[str, int]]:
    """Check the network; return operator and MACs of the layers on the machine."""
    with Session(graph.model(), config) as session:
        report = session.check({"x": graph.images()})
        layers = [layer for layer in session.layers if layer.placed_on == "machine"]
    assert report.histogram == {}
    assert np.unique(report.outputs["y"]).size > 3
    return [(layer.operator, layer.macs_per_run) for layer in layers]


def operators(graph: Any, config: Config = MACHINE) -> list[str]:
    return [operator for operator, _ in placed(graph, config)]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("strides", [[1, 1], [2, 2], [2, 1]])
def test_one_layer_expands_and_filters(qdq: Make, dtype: Any, strides: list[int]) -> None:
    graph = depthwise(expanded(qdq, dtype), strides=strides)
    graph.qdq(0.37, np.iinfo(dtype).min + 99)
    ((operator, macs),) = placed(graph)
    assert operator == FUSED
    results = -(-14 // strides[0]) * -(-14 // strides[1])
    assert macs == 40 * (14 * 14 * 20 + results * 9)


@pytest.mark.parametrize("pads", [[0, 1, 1, 0], [2, 2, 2, 2], [0, 0, 0, 0]])
@pytest.mark.parametrize("size", [3, 5])
def test_any_padding_and_larger_kernels(
    qdq: Make, size: int, pads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fused, even if the parts take no longer.
    monkeypatch.setattr(workload, "_LEAST_GAIN", -1000)
    graph = depthwise(expanded(qdq, size=20), size=size, pads=pads)
    assert operators(graph.qdq(0.37, 11)) == [FUSED]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("channels", [328, 256])
def test_averages_are_taken_in_the_same_layer(
    qdq: Make, dtype: Any, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Averages become a depthwise convolution by ones, which is not counted in the network's
    MACs."""
    # Fused, even if the parts take no longer.
    monkeypatch.setattr(workload, "_LEAST_GAIN", -100_000)
    low = np.iinfo(dtype).min
    graph = qdq((1, 320, 7, 7), dtype).qdq(0.031, low + 120).conv(320, channels, 1)
    graph.node("Relu").qdq(0.0613, low).node("GlobalAveragePool").qdq(0.043, low + 3)
    assert placed(graph) == [(FUSED, 320 * channels * 7 * 7)]


def test_averages_of_windows_are_taken_in_the_same_layer(qdq: Make) -> None:
    graph = expanded(qdq, size=14, channels=256)
    graph.node("AveragePool", kernel_shape=[2, 2], strides=[2, 2]).qdq(0.043, 5)
    assert operators(graph) == [FUSED]


def test_averages_are_layers_where_the_machine_does_not_forward_results(qdq: Make) -> None:
    def graph() -> Any:
        made = qdq((1, 320, 7, 7)).qdq(0.031, 20).conv(320, 256, 1)
        return made.node("Relu").qdq(0.0613, -128).node("GlobalAveragePool").qdq(0.043, 3)

    assert operators(graph(), replace(MACHINE, forward=0)) == ["QLinearConv"] * 2


def test_large_images_are_cut_into_tiles(qdq: Make) -> None:
    graph = depthwise(expanded(qdq, size=56), strides=[2, 2])
    assert operators(graph.qdq(0.37, 11)) == [FUSED]


def test_functions_run_in_the_same_layer(qdq: Make) -> None:
    graph = qdq((1, 20, 14, 14)).qdq(0.031, 7).conv(20, 40, 1).qdq(0.0813, 1)
    graph.node("HardSwish").qdq(0.041, -100)
    depthwise(graph).qdq(0.0377, 11).node("Elu").qdq(0.0213, -90)
    (operator,) = operators(graph)
    assert operator.count("+") == 3


def test_the_result_of_the_expansion_may_be_read_again(qdq: Make) -> None:
    graph = expanded(qdq)
    start = graph.value
    depthwise(graph).qdq(0.37, 11).node("Add", start).qdq(0.41, 7)
    assert operators(graph) == ["QLinearConv", "QLinearConv", "Add"]


def test_other_convolutions_stay_two_layers(qdq: Make) -> None:
    graph = qdq((1, 20, 14, 14)).qdq(0.031, 7).conv(20, 40).qdq(0.0613, -128)
    assert operators(depthwise(graph).qdq(0.37, 11)) == ["QLinearConv"] * 2
    graph = expanded(qdq)
    graph.node("Conv", graph.weights(20, 20, 3, 3), group=2)
    assert operators(graph.qdq(0.37, 11)) == ["QLinearConv"] * 2


def test_the_machine_has_to_forward_results(qdq: Make) -> None:
    graph = depthwise(expanded(qdq)).qdq(0.37, 11)
    assert operators(graph, replace(MACHINE, forward=0)) == ["QLinearConv"] * 2


def test_two_layers_stay_two_where_they_take_fewer_cycles(qdq: Make) -> None:
    """With many channels only small tiles fit, and most of the expansion would be computed
    twice."""
    graph = qdq((1, 640, 12, 12)).qdq(0.031, 7).conv(640, 32, 1).qdq(0.513, -128)
    assert operators(depthwise(graph, 32).qdq(0.37, 11)) == ["QLinearConv"] * 2
