"""Functions of layers are built once, and only for layers that remain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.session import compilation
from amaranth_vta.sw.compiler.build import Function, build
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.graph.layers import convolution, pooling
from amaranth_vta.sw.compiler.graph.layers.fusion import (
    fused_expansion,
    fused_projection,
)
from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer
from amaranth_vta.sw.compiler.graph.layers.support.layer_functions import LayerFunctions
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d, conv2d
from amaranth_vta.sw.compiler.operators.depthwise_chain import depthwise_chain
from amaranth_vta.sw.compiler.tuner import workload
from amaranth_vta.sw.compiler.tuner.workload import NoScheduleFits
from amaranth_vta.sw.runtime.network.tile_layout import TileLayout
from amaranth_vta.sw.runtime.network.tiled_tensor import TiledTensor
from tests.sw.compiler.graph.layers.test_fused_expansion import MACHINE, operators
from tests.sw.compiler.graph.layers.test_fused_projection import BLOCK, block

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def _compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network comes from the cache."""
    monkeypatch.setattr(compilation, "has_own_operators", lambda: True)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions built so far."""
    names: list[str] = []

    def counted(schedule: Any, args: Any, name: str, env: Environment) -> Function:
        names.append(name)
        return build(schedule, args, name, env)

    monkeypatch.setattr(workload, "build", counted)
    return names


def test_layers_that_are_fused_with_others_are_not_built(qdq: Make, built: list[str]) -> None:
    assert operators(block(qdq)) == [BLOCK]
    assert len(built) == 1


def test_equal_layers_are_built_once(qdq: Make, built: list[str]) -> None:
    graph = qdq((1, 32, 8, 8), np.int8).qdq(0.031, 3)
    for _ in range(4):
        graph.conv(32, 32, 1).qdq(0.031, 3)
    assert operators(graph) == ["QLinearConv"] * 4
    # None of the first layer's weights are prefetched.
    assert len(built) == 2


def refuse(*_: Any, **__: Any) -> Any:
    raise NoScheduleFits("no schedule fits")


def refuse_additions(workload: Conv2d, *others: Any, **named: Any) -> Any:
    return refuse() if workload.addition else conv2d(workload, *others, **named)


def test_what_cannot_be_built_stays_in_two_layers(
    qdq: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate predicted that it would fit. Results stay the same."""
    monkeypatch.setattr(fused_projection, "depthwise_chain", refuse)
    assert operators(block(qdq)) == ["QLinearConv+QLinearConv", "QLinearConv"]
    monkeypatch.setattr(fused_expansion, "depthwise_chain", refuse)
    assert operators(block(qdq)) == ["QLinearConv"] * 3
    monkeypatch.setattr(fused_projection, "depthwise_chain", depthwise_chain)
    assert operators(block(qdq)) == [BLOCK]


def test_an_addition_or_a_pooling_that_cannot_be_fused_is_a_layer_of_its_own(
    qdq: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def added() -> Any:
        graph = qdq((1, 3, 12, 12)).qdq(0.031, 8).conv(3, 9).qdq(0.21, -3)
        start = graph.value
        graph.conv(9, 9, pads=[1] * 4).qdq(0.37, 9)
        return graph.node("Add", start).qdq(0.41, 7)

    def pooled() -> Any:
        graph = qdq((1, 3, 8, 8)).qdq(2**-5).conv(3, 5).node("Relu").qdq(2**-3)
        return graph.node("MaxPool", kernel_shape=[2, 2], strides=[2, 2]).qdq(2**-3)

    small = PRESETS["tiny-extended"]
    assert operators(added(), small) == ["QLinearConv", "QLinearConv+Add"]
    assert operators(pooled(), small) == ["QLinearConv+MaxPool"]
    monkeypatch.setattr(convolution, "conv2d", refuse_additions)
    monkeypatch.setattr(pooling, "conv2d", refuse)
    assert operators(added(), small) == ["QLinearConv", "QLinearConv", "Add"]
    assert operators(pooled(), small) == ["QLinearConv", "MaxPool"]


def test_equal_layers_that_cannot_be_built_are_all_left_to_the_host(
    qdq: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "conv2d", refuse)
    graph = qdq((1, 32, 8, 8), np.int8).qdq(0.031, 3)
    for _ in range(3):
        graph.conv(32, 32, 1).qdq(0.031, 3)
    assert operators(graph) == []


def test_what_cannot_be_built_of_an_own_operator_is_an_error() -> None:
    """Placement is repeated only if a function that `LayerFunctions` has promised fails."""
    result = TiledTensor("x", (1, 1, 1, 1), TileLayout.of(MACHINE.out))
    own = Layer("own", "Own", (), (), result, refuse, {}, 0)
    with pytest.raises(NoScheduleFits):
        LayerFunctions(Environment(MACHINE)).build([own])
