"""Transposes that permute tiles: images to rows of channels and back, and heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amaranth_vta.session import Session

Make = Callable[..., Any]
LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def transposes(graph: Any, config: str = "tiny-extended") -> list[str]:
    """Check the network; for each Transpose, return ``machine`` or the reason why it is on the
    host.
    """
    with Session(graph.model(), config) as session:
        report = session.check({"x": graph.images()})
        layers = session.layers
    assert report.histogram == {}
    assert np.unique(report.outputs["y"]).size > 3
    return [item.reason or "machine" for item in layers if "Transpose" in item.operator.split("+")]


@pytest.mark.parametrize("channels", [5, 8])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("shape", [(1, 3, 6, 5), (2, 3, 6, 5), (1, 3, 9), (2, 3, 9)])
def test_images_become_rows_and_rows_images(
    qdq: Make, shape: tuple[int, ...], dtype: Any, channels: int
) -> None:
    low, rank = np.iinfo(dtype).min, len(shape)
    last, first = (LAST, FIRST) if rank == 4 else ([0, 2, 1], [0, 2, 1])
    kernel = [1] * (rank - 2)
    graph = qdq(shape, dtype).qdq(0.03, low + 120)
    graph.node("Conv", graph.weights(channels, 3, *kernel, scale=0.02)).qdq(0.9, low + 99)
    graph.node("Transpose", perm=last).node("MatMul", graph.weights(channels, 7, scale=0.02))
    graph.qdq(0.83, low + 101).node("Transpose", perm=first)
    graph.node("Conv", graph.weights(4, 7, *kernel, scale=0.02)).qdq(0.7, low + 130)
    assert transposes(graph) == ["machine"] * 2


def heads(graph: Any, rows: int, count: int, size: int, *, joined: bool = False) -> Any:
    """Split channels into heads, or join heads."""
    if joined:
        graph.node("Transpose", perm=[0, 2, 1, 3])
        return graph.node("Reshape", graph.constant([1, rows, count * size], np.int64))
    graph.node("Reshape", graph.constant([1, rows, count, size], np.int64))
    return graph.node("Transpose", perm=[0, 2, 1, 3])


def attention(qdq: Make, size: int) -> Any:
    """Self-attention with two heads of ``size`` channels, without softmax."""
    rows, count = 6, 2
    graph = qdq((1, rows, 8)).qdq(0.03)
    graph.node("MatMul", graph.weights(8, count * size, scale=0.02)).qdq(0.9)
    given = graph.value
    heads(graph, rows, count, size)
    first, graph.value = graph.value, given
    graph.node("Reshape", graph.constant([1, rows, count, size], np.int64))
    second = graph.node("Transpose", perm=[0, 2, 3, 1]).value
    graph.value = first
    graph.node("MatMul", second).qdq(13.0)
    graph.node("MatMul", first).qdq(99.0)
    heads(graph, rows, count, size, joined=True)
    return graph.node("MatMul", graph.weights(count * size, 5, scale=0.02)).qdq(90.0)


def test_heads_of_whole_tiles_are_cut_and_joined_on_the_machine(qdq: Make) -> None:
    """Except for keys whose 8 columns do not fill tiles of the default machine."""
    assert sorted(transposes(attention(qdq, 8))) == [
        *("channels would change their places within tiles", *["machine"] * 4)
    ]


def test_heads_within_tiles_are_the_hosts(qdq: Make) -> None:
    moved = "channels would change their places within tiles"
    assert set(transposes(attention(qdq, 6))) <= {moved, "machine"}
    assert moved in transposes(attention(qdq, 6))


@pytest.mark.parametrize(
    ("perm", "config", "reason"),
    [
        ([0, 2, 1, 3], "tiny-extended", "channels would change their places within tiles"),
        ([0, 1, 3, 2], "tiny-extended", "machine"),
        ([1, 0, 2, 3], "tiny-extended", "channels would change their places within tiles"),
        (LAST, "batch2", "tiles hold 2 images or rows, whose order it changes"),
    ],
)
def test_channels_stay_channels(qdq: Make, perm: list[int], config: str, reason: str) -> None:
    graph = qdq((2, 3, 4, 4)).qdq(2**-5).conv(3, 4, 1).qdq(2**-3).node("Transpose", perm=perm)
    shape = [(2, 4, 4, 4)[axis] for axis in perm]
    if perm == LAST:
        graph.node("MatMul", graph.weights(4, 5)).qdq(2**-3)
    else:
        graph.conv(shape[1], 5, 1).qdq(2**-3)
    assert transposes(graph, config) == [reason]


def test_what_the_host_alone_reads_the_host_transposes(qdq: Make) -> None:
    graph = qdq((1, 3, 6, 6)).qdq(0.03).conv(3, 5).qdq(0.9).node("Transpose", perm=LAST)
    assert transposes(graph) == ["only the host reads its result"]
    graph = (
        qdq((1, 3, 6, 6))
        .qdq(0.03)
        .node("Transpose", perm=LAST)
        .node("MaxPool", kernel_shape=[1, 2])
    )
    assert transposes(graph) == ["it follows an operator on the host"]
