"""Producers of a concatenation's operands write them in place."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amaranth_vta.session import Session
from amaranth_vta.session.compilation import compile

Make = Callable[..., Any]
RACES = Path(__file__).parents[5] / "benchmarks/races.py"


def convolved(graph: Any, value: str, channels: int, outputs: int = 4, size: int = 1) -> str:
    """Append a convolution of a tensor; all parts have the same scale."""
    graph.value = value
    graph.node("Conv", graph.weights(outputs, channels, size, size)).qdq(0.9, 3)
    made: str = graph.value
    return made


def concatenated(graph: Any, *parts: str) -> str:
    graph.value = parts[0]
    graph.node("Concat", *parts[1:], axis=1).qdq(0.9, 3)
    made: str = graph.value
    return made


def placed(graph: Any, device: str = "functional") -> list[str]:
    """Check the network; return the operators on the machine."""
    with Session(graph.model(), "tiny-extended", device) as session:
        report = session.check({"x": graph.images()})
        assert report.ok
        assert np.unique(report.outputs["y"]).size > 3
        layers = session.layers
    return [item.operator for item in layers if item.placed_on == "machine"]


def branches(qdq: Make, pixels: int = 8) -> tuple[Any, str, str, str]:
    """A graph, and three of its tensors with 4 channels; the last two are computed from the
    first."""
    graph = qdq((1, 4, pixels, pixels), np.int8).qdq(0.031, 3)
    first = convolved(graph, graph.value, 4)
    return graph, first, convolved(graph, first, 4), convolved(graph, first, 4)


@pytest.mark.parametrize("device", ["functional", "rtl"])
def test_parts_are_made_in_their_place(qdq: Make, device: str) -> None:
    graph, *parts = branches(qdq)
    convolved(graph, concatenated(graph, *parts), 12, 5, 3)
    conv = "QLinearConv"
    assert placed(graph, device) == [conv, conv, f"{conv}+Concat", conv]


def test_parts_in_place_are_ordered_by_tokens(qdq: Make) -> None:
    graph, *parts = branches(qdq)
    convolved(graph, concatenated(graph, *parts), 12, 5, 3)
    ((text, wrong),) = runpy.run_path(str(RACES))["found"](
        compile(graph.model(), "tiny-extended").program
    )
    assert text.startswith("4 layers, ")
    assert wrong == []


def test_a_concatenation_can_be_in_place_in_another(qdq: Make) -> None:
    graph, first, second, third = branches(qdq)
    inner = concatenated(graph, second, first)
    convolved(graph, concatenated(graph, third, inner), 12, 5)
    assert placed(graph).count("Concat") == 0


@pytest.mark.parametrize("device", ["functional", "rtl"])
def test_parts_are_aligned_to_tiles(qdq: Make, device: str) -> None:
    graph, *parts = branches(qdq, 7)
    convolved(graph, concatenated(graph, *parts), 12, 5)
    assert placed(graph, device)[-2:] == ["QLinearConv+Concat", "QLinearConv"]


@pytest.mark.parametrize("device", ["functional", "rtl"])
def test_a_part_of_two_concatenations_is_in_place_in_one_and_read_there_by_the_other(
    qdq: Make, device: str
) -> None:
    graph, first, second, third = branches(qdq)
    one, other = concatenated(graph, first, second), concatenated(graph, first, third)
    convolved(graph, concatenated(graph, one, other), 16, 5, 3)
    conv = "QLinearConv"
    assert placed(graph, device) == [conv, f"{conv}+Concat", conv, conv]


def swapped_parts(qdq: Make, pixels: int) -> tuple[Any, str]:
    """A graph, and the concatenation of two slices of a convolution's result."""
    graph = qdq((1, 4, pixels, pixels), np.int8).qdq(0.031, 3)
    whole = convolved(graph, graph.value, 4, 12)
    parts = []
    for begin in (8, 0):
        graph.value = whole
        bounds = (graph.constant([value], np.int64) for value in (begin, begin + 4, 1))
        parts.append(graph.node("Slice", *bounds).qdq(0.9, 3).value)
    return graph, concatenated(graph, *parts)


@pytest.mark.parametrize("device", ["functional", "rtl"])
def test_whole_tiles_are_read_where_they_are_stored(qdq: Make, device: str) -> None:
    graph, joined = swapped_parts(qdq, 8)
    convolved(graph, joined, 8, 5, 3)
    assert placed(graph, device) == ["QLinearConv", "QLinearConv"]


def test_small_tiles_are_not_read_from_several_places(qdq: Make) -> None:
    graph, joined = swapped_parts(qdq, 2)
    convolved(graph, joined, 8, 5)
    assert placed(graph) == ["QLinearConv", "Slice", "Slice+Concat", "QLinearConv"]


def test_what_the_host_makes_keeps_its_own_buffer_and_is_read_there(qdq: Make) -> None:
    graph = qdq((1, 4, 8, 8), np.int8).qdq(0.9, 3)
    source = graph.value
    convolved(graph, concatenated(graph, source, convolved(graph, source, 4)), 8, 5)
    assert placed(graph) == ["QLinearConv", "QLinearConv"]
