"""Inverted residuals fused into one layer: exact, and only where allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.sw.compiler.graph.layers.test_fused_expansion import (
    MACHINE,
    depthwise,
    expanded,
    operators,
    placed,
)

Make = Callable[..., Any]
BLOCK = "QLinearConv+QLinearConv+QLinearConv"


def block(
    qdq: Make, dtype: Any = np.int8, size: int = 28, outputs: int = 20, **attributes: Any
) -> Any:
    """A graph with an expansion to 40 channels, a depthwise convolution, and a projection."""
    low = np.iinfo(dtype).min
    graph = depthwise(expanded(qdq, dtype, size), **attributes).node("Relu").qdq(0.0817, low)
    return graph.conv(40, outputs, 1).qdq(0.31, low + 99)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("strides", [[1, 1], [2, 2]])
def test_one_layer_expands_filters_and_projects(qdq: Make, dtype: Any, strides: list[int]) -> None:
    ((operator, macs),) = placed(block(qdq, dtype, strides=strides))
    assert operator == BLOCK
    pixels = (28 // strides[0]) * (28 // strides[1])
    assert macs == 40 * (28 * 28 * 20 + pixels * 9 + pixels * 20)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_the_image_is_added_in_the_same_layer(qdq: Make, dtype: Any) -> None:
    low = np.iinfo(dtype).min
    graph = qdq((1, 20, 28, 28), dtype).qdq(0.031, low + 120)
    image = graph.value
    graph.conv(20, 40, 1).node("Relu").qdq(0.0613, low)
    depthwise(graph).node("Relu").qdq(0.0817, low).conv(40, 20, 1).qdq(0.031, low + 99)
    assert operators(graph.node("Add", image).qdq(0.041, low + 88)) == [f"{BLOCK}+Add"]


def test_a_function_runs_in_the_same_layer(qdq: Make) -> None:
    graph = block(qdq)
    assert operators(graph.node("HardSwish").qdq(0.21, -100)) == [f"{BLOCK}+HardSwish"]


def test_what_is_filtered_may_be_read_again(qdq: Make) -> None:
    graph = depthwise(expanded(qdq, size=28)).qdq(0.37, 11)
    filtered = graph.value
    graph.conv(40, 40, 1).qdq(0.31, 3).node("Add", filtered).qdq(0.41, 7)
    assert BLOCK not in "".join(operators(graph))


def test_larger_kernels_stay_layers_of_their_own(qdq: Make) -> None:
    graph = depthwise(expanded(qdq, size=28)).qdq(0.37, 11).conv(40, 20).qdq(0.31, 3)
    assert BLOCK not in operators(graph)


def test_the_machine_has_to_forward_results(qdq: Make) -> None:
    assert operators(block(qdq), replace(MACHINE, forward=0)) == ["QLinearConv"] * 3


def test_the_projection_is_apart_where_that_takes_fewer_cycles(qdq: Make) -> None:
    """With many output channels only small tiles fit, and the image would be expanded several
    times.
    """
    assert operators(block(qdq, outputs=400)) == ["QLinearConv+QLinearConv", "QLinearConv"]


def pair(qdq: Make) -> Any:
    """A graph with a depthwise convolution of 40 channels and a projection."""
    graph = qdq((1, 40, 28, 28), np.int8).qdq(0.031, -8)
    return depthwise(graph).node("Relu").qdq(0.0817, -128).conv(40, 20, 1).qdq(0.31, -29)


def test_without_an_expansion_one_layer_filters_and_projects(qdq: Make) -> None:
    assert operators(pair(qdq)) == ["QLinearConv+QLinearConv"]
    assert operators(pair(qdq), replace(MACHINE, forward=0)) == ["QLinearConv"] * 2


def test_a_projection_that_is_an_expansion_is_fused_with_the_layers_that_follow(qdq: Make) -> None:
    graph = depthwise(pair(qdq), 20).node("Relu").qdq(0.0817, -128).conv(20, 20, 1).qdq(0.31, -29)
    assert operators(graph) == ["QLinearConv", BLOCK]


def test_a_projection_before_a_global_average_is_fused(qdq: Make) -> None:
    graph = pair(qdq).node("GlobalAveragePool").qdq(0.31, -29)
    assert operators(graph)[0] == "QLinearConv+QLinearConv"
