"""Additions fused into the preceding convolution: exact, and only where allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.session import Session

Make = Callable[..., Any]
FUSED = "QLinearConv+Add"


def block(qdq: Make, dtype: Any) -> tuple[Any, str]:
    """A graph with one convolution, and the name of its result, for a residual addition."""
    low = np.iinfo(dtype).min
    graph = qdq((1, 3, 12, 12), dtype).qdq(0.031, low + 120).conv(3, 9)
    graph.node("Relu").qdq(0.21319, low + 3)
    return graph, graph.value


def placed(graph: Any, config: Config | str = "tiny-extended") -> list[tuple[str, str, int]]:
    """Check the network; return name, operator and MACs of the layers on the machine."""
    with Session(graph.model(), config) as session:
        report = session.check({"x": graph.images(2)})
        layers = [layer for layer in session.layers if layer.placed_on == "machine"]
    assert report.histogram == {}
    assert np.unique(report.outputs["y"]).size > 3
    return [(layer.name, layer.operator, layer.macs_per_run) for layer in layers]


def operators(graph: Any, config: Config | str = "tiny-extended") -> list[str]:
    return [operator for _, operator, _ in placed(graph, config)]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("other_first", [False, True])
def test_a_residual_addition_is_part_of_its_convolution(
    qdq: Make, dtype: Any, other_first: bool
) -> None:
    graph, start = block(qdq, dtype)
    low = np.iinfo(dtype).min
    graph.conv(9, 9, pads=[1, 1, 1, 1]).qdq(0.37, low + 99)
    if other_first:
        graph.value, start = start, graph.value
    graph.node("Add", start).node("Relu").qdq(0.41, low + 7)
    (_, first, _), (_, second, macs) = placed(graph)
    assert (first, second) == ("QLinearConv", FUSED)
    assert macs == 10 * 10 * 9 * 9 * 9


@pytest.mark.parametrize("other_first", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_an_addition_that_takes_corrections_is_on_the_machine(
    qdq: Make, fused: bool, other_first: bool
) -> None:
    """With scales for which no linear function gives all results."""
    graph = qdq((1, 3, 8, 8)).qdq(0.03).conv(3, 9, 1).qdq(0.9133040904998779)
    start = graph.value
    graph.conv(9, 9, pads=[1, 1, 1, 1])
    graph.qdq(0.8964420557022095)
    if not fused:
        graph.node("MaxPool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    if other_first:
        graph.value, start = start, graph.value
    graph.node("Add", start).qdq(1.0132163763046265)
    found = operators(graph)
    assert found[-1] == (FUSED if fused else "Add")


def test_where_both_come_from_convolutions_the_one_that_saves_more_is_chosen(qdq: Make) -> None:
    graph, start = block(qdq, np.int8)
    graph.conv(9, 10, strides=[2, 2], pads=[1, 1, 1, 1]).qdq(0.37173)
    main = graph.value
    graph.value, graph.scale = start, 0.21319
    graph.conv(9, 10, 1, strides=[2, 2]).qdq(0.29311).node("Add", main).qdq(0.51207)
    layers = placed(graph)
    assert sorted(operator for _, operator, _ in layers) == ["QLinearConv", "QLinearConv", FUSED]
    (fused,) = (macs for _, operator, macs in layers if operator == FUSED)
    assert fused in (5 * 5 * 10 * 81, 5 * 5 * 10 * 9)
    assert layers[-1][1] == FUSED


def test_a_result_that_others_read_too_is_stored(qdq: Make) -> None:
    graph, start = block(qdq, np.int8)
    graph.conv(9, 9, 1).qdq(0.37173)
    both = graph.value
    graph.node("Add", start).qdq(0.41379)
    graph.node("Add", both).qdq(0.61717)
    assert operators(graph) == ["QLinearConv", "QLinearConv", "Add", "Add"]


def test_a_tensor_added_to_itself_is_an_addition_where_there_are_no_tables(qdq: Make) -> None:
    graph, _ = block(qdq, np.int8)
    graph.conv(9, 9, 1).qdq(0.37173)
    graph.node("Add", graph.value).qdq(0.91303)
    assert FUSED not in operators(graph, replace(PRESETS["tiny-extended"], lookup=0))


def test_an_addition_that_others_read_before_its_clip_comes_after_both(qdq: Make) -> None:
    """Two residual blocks in sequence: each convolution is fused with its own addition."""
    graph, start = block(qdq, np.int8)
    for scale in (0.41379, 0.53117):
        graph.conv(9, 9, 1).qdq(0.37173)
        graph.node("Add", start).qdq(scale)
        start = graph.value
    assert operators(graph) == ["QLinearConv", FUSED, FUSED]
