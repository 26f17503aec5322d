"""Reordered channels: shuffles, halves that begin within tiles, arbitrary concatenations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from amaranth_vta.report.layer_report import LayerReport
from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.network.model_error import ModelError

Make = Callable[..., Any]
BOTH = pytest.mark.parametrize("dtype", [np.int8, np.uint8])


def placed(graph: Any, images: int | None = None) -> list[LayerReport]:
    """Check the network; return its layers without float conversions."""
    with Session(graph.model(), "tiny-extended", images=images) as session:
        report = session.check({"x": graph.images(images or 1)})
        layers = session.layers
    assert report.histogram == {}
    assert all(np.unique(output).size > 3 for output in report.outputs.values())
    floats = ("QuantizeLinear", "DequantizeLinear", "layout")
    return [item for item in layers if item.operator not in floats]


def shuffled(graph: Any, *sizes: int, groups: int = 2) -> Any:
    """Channels of ``groups`` interleaved, as PyTorch's exporter writes it."""
    batch, channels, *rest = sizes
    parts = [batch, groups, channels // groups, *rest]
    graph.node("Reshape", graph.constant(parts, np.int64))
    graph.node("Transpose", perm=[0, 2, 1, *range(3, len(parts))])
    return graph.node("Reshape", graph.constant([batch, -1, *rest], np.int64))


def halves(graph: Any, channels: int) -> tuple[str, str]:
    sizes, given = graph.constant([channels // 2] * 2, np.int64), graph.value
    names = f"left{len(graph.nodes)}", f"right{len(graph.nodes)}"
    graph.nodes.append(onnx.helper.make_node("Split", [given, sizes], names, axis=1))
    return names


@BOTH
@pytest.mark.parametrize("channels", [12, 14, 16])
def test_units_of_shufflenet_run_as_a_whole(qdq: Make, dtype: Any, channels: int) -> None:
    """Halves may begin within tiles; one of them is rescaled before the concatenation."""
    low, half = np.iinfo(dtype).min, channels // 2
    graph = qdq(("images", 3, 6, 6), dtype).qdq(0.03, low + 120)
    graph.node("Conv", graph.weights(channels, 3, 1, 1, scale=0.02)).qdq(0.9, low + 128)
    for _ in range(2):
        kept, graph.value = halves(graph, channels)
        graph.node("Conv", graph.weights(half, half, 1, 1, scale=0.01)).qdq(1.1, low + 128)
        graph.node("Concat", kept, axis=1).qdq(1.1, low + 128)
        shuffled(graph, 0, channels, 6, 6)
    graph.node("Conv", graph.weights(5, channels, 1, 1, scale=0.01)).qdq(0.9, low + 128)
    layers = placed(graph, 2)
    assert {layer.placed_on for layer in layers} == {"machine"}
    # Convolutions load concatenated, shuffled and split channels from the stored images.
    assert all(item.operator.startswith("QLinear") for item in layers)


@pytest.mark.parametrize("groups", [2, 3, 4, 6])
@pytest.mark.parametrize("sizes", [(1, 12, 4, 5), (2, 12, 3, 3), (1, 12, 9), (2, 12)])
def test_shuffles_of_groups_are_on_the_machine(
    qdq: Make, sizes: tuple[int, ...], groups: int
) -> None:
    graph = qdq(sizes).qdq(0.03)
    if len(sizes) == 2:
        graph.node("MatMul", graph.weights(12, 12, scale=0.02)).qdq(0.9)
    else:
        kernel = [1] * (len(sizes) - 2)
        graph.node("Conv", graph.weights(12, 12, *kernel, scale=0.02)).qdq(0.9)
    layers = placed(shuffled(graph, *sizes, groups=groups).qdq(0.9))
    assert [item.operator for item in layers if item.placed_on == "machine"][-1] == "Gather"


@BOTH
def test_a_gather_of_channels_is_on_the_machine(qdq: Make, dtype: Any) -> None:
    """In any order, with repeated channels and negative indices."""
    graph = qdq((1, 3, 6, 6), dtype).qdq(0.03).conv(3, 10).qdq(0.9)
    graph.node("Gather", graph.constant([7, -1, 0, 7, 3], np.int64), axis=1).conv(5, 4, 1).qdq(0.8)
    (_, gather, _) = placed(graph)
    assert (gather.operator, gather.placed_on) == ("Gather", "machine")


def test_what_else_reads_a_concatenation_reads_it_as_it_was(qdq: Make) -> None:
    graph = qdq((1, 3, 6, 6)).qdq(0.03)
    begin, parts = graph.value, []
    for _ in range(2):
        graph.value = begin
        graph.scale = 0.03
        parts.append(graph.conv(3, 6).qdq(0.9).value)
    graph.value = parts[0]
    whole = graph.node("Concat", parts[1], axis=1).qdq(0.9).value
    mixed = shuffled(graph, 1, 12, 4, 4).value
    graph.node("Add", whole).qdq(1.7).node("Add", mixed).qdq(2.3)
    layers = placed(graph)
    assert {layer.placed_on for layer in layers} == {"machine"}
    assert {"Concat", "Gather"} < {layer.operator for layer in layers}


def test_a_tensor_may_be_joined_with_itself(qdq: Make) -> None:
    graph = qdq((1, 3, 6, 6)).qdq(0.03).conv(3, 8).qdq(0.9)
    graph.node("Concat", graph.value, axis=1).qdq(0.9).conv(16, 4, 1).qdq(0.8)
    assert {layer.placed_on for layer in placed(graph)} == {"machine"}


@pytest.mark.parametrize(
    ("attributes", "indices", "reason"),
    [
        (
            {"axis": 1},
            [[0, 3], [5, 1]],
            "its result has 5 dimensions, and the machine holds two to four",
        ),
    ],
)
def test_other_gathers_are_the_hosts(qdq: Make, attributes: Any, indices: Any, reason: str) -> None:
    graph = qdq((1, 3, 6, 6)).qdq(0.03).conv(3, 10).qdq(0.9)
    graph.node("Gather", graph.constant(indices, np.int64), **attributes).node("Sin")
    gather = next(layer for layer in placed(graph) if layer.operator == "Gather")
    assert gather.reason == reason


def test_other_transposes_between_two_reshapes_are_not_shuffles(qdq: Make) -> None:
    """They also move pixels, or channels between images."""
    for perm in ([0, 3, 2, 1, 4], [1, 0, 2, 3, 4]):
        graph = qdq((2, 8, 2, 4)).qdq(0.03).conv(8, 8, 1).qdq(0.9)
        graph.node("Reshape", graph.constant([2, 2, 4, 2, 4], np.int64))
        graph.node("Transpose", perm=perm)
        graph.node("Reshape", graph.constant([2, 8, 2, 4], np.int64)).conv(8, 5, 1).qdq(0.8)
        assert "Transpose" in {layer.operator for layer in placed(graph)}


def test_channels_that_there_are_not_are_refused_with_a_sentence(qdq: Make) -> None:
    """ONNX infers shapes without checking indices and block sizes."""
    for make in (
        lambda graph: graph.node("Gather", graph.constant([1, 99], np.int64), axis=1),
        lambda graph: graph.node("DepthToSpace", blocksize=3),
    ):
        graph = make(qdq((1, 3, 6, 6)).qdq(0.03).conv(3, 10).qdq(0.9)).qdq(0.9)
        with pytest.raises(ModelError), Session(graph.model(), "tiny-extended") as session:
            session.check({"x": graph.images()})


@pytest.mark.parametrize("kind", ["Concat", "Gather", "Slice", "Split"])
def test_channels_within_tiles_are_the_hosts_where_input_tiles_are_larger(
    qdq: Make, kind: str
) -> None:
    graph = qdq((2, 8, 4, 5)).qdq(2**-5).conv(8, 6, 1).qdq(2**-3)
    if kind == "Concat":
        graph.node("Concat", graph.value, axis=1)
    elif kind == "Gather":
        graph.node("Gather", graph.constant([4, 0, 5], np.int64), axis=1)
    elif kind == "Slice":
        graph.node("Slice", *(graph.constant([at], np.int64) for at in (1, 5, 1)))
    else:
        split = helper.make_node("Split", [graph.value], ["first", "second"], axis=1)
        split.input.append(graph.constant([3, 3], np.int64))
        graph.nodes.append(split)
        graph.value = "second"
    with Session(graph.qdq(2**-3).model(), "batch2") as session:
        report = session.check({"x": graph.images(2)})
        layers = {layer.operator: layer for layer in session.layers}
    assert report.ok
    assert layers["QLinearConv"].placed_on == "machine"
    reason = "it moves channels within tiles of 4 int8, and GEMM reads tiles of 8 int8"
    assert layers["Slice" if kind == "Split" else kind].reason == reason
