"""The kernel's pixels are packed into channels where that is cheaper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.layers.support.choose_packing import best_packing, packings
from amaranth_vta.sw.compiler.graph.layers.support.tiled_constants import input_layout
from amaranth_vta.sw.runtime.network.packing import Packing, Window

Array = npt.NDArray[Any]
PYNQ = PRESETS["pynq"]


@pytest.mark.parametrize(
    ("kernel", "stride", "image", "outputs", "packed"),
    [
        # 147 channels, padded to 160, as in ResNet-18.
        (7, 2, (1, 3, 224, 224), 64, (7, 7)),
        # Loading two tiles per pixel would take longer than multiplying by three rows of the
        # kernel.
        (3, 1, (1, 3, 32, 32), 16, (1, 3)),
        (3, 1, (1, 1, 8, 8), 16, (3, 3)),
        # With one tile of results per pixel, two tiles to load would take the bus longer than four
        # products take GEMM.
        (3, 2, (1, 3, 320, 320), 16, (2, 2)),
        # With two tiles of results, products in blocks would take as long as loading 3x3 pixels.
        (3, 2, (1, 3, 224, 224), 32, (3, 3)),
        (3, 1, (1, 16, 32, 32), 16, None),
        (1, 1, (1, 3, 32, 32), 16, None),
    ],
)
def test_what_takes_the_fewest_cycles_is_packed(
    kernel: int, stride: int, image: Any, outputs: int, packed: tuple[int, int] | None
) -> None:
    window = Window((kernel, kernel), (stride, stride), (1, 1), (kernel // 2,) * 4)
    packing, left = best_packing(window, 0, image, outputs, input_layout(PYNQ), PYNQ)
    assert (packing.window.kernel if packing else None) == packed
    assert left.size(packing.image(image)[2:] if packing else image[2:]) == window.size(image[2:])


def test_what_a_depthwise_convolution_reads_is_packed_to_a_1x1_convolution() -> None:
    window, image = Window((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)), (1, 3, 320, 320)
    given = window, 0, image, 16, input_layout(PYNQ), PYNQ
    assert best_packing(*given)[1].taps == 4
    packing, left = best_packing(*given, is_expansion=True)
    assert packing == Packing(window, 0)
    assert left.taps == 1


@pytest.mark.parametrize(
    ("window", "count"),
    [
        # None of 3 rows, all 3 or 2; none of 2 columns or both.
        (Window((3, 2), (1, 1), (1, 1), (0, 0, 0, 0)), 6),
        # No blocks of 2 rows: the last row of the image is in no window.
        (Window((4, 3), (2, 1), (1, 1), (0, 0, 0, 1)), 2 * 3),
        (Window((3, 3), (2, 1), (1, 1), (1, 0, 2, 1)), 9),
        # No blocks of dilated rows, and none of columns smaller than the stride.
        (Window((2, 4), (1, 3), (2, 1), (0, 3, 1, 0)), 2 * 3),
        # Blocks of 2 and 4 rows with stride 2, the latter with dilation 2; of 2, 3, 4 columns.
        (Window((5, 5), (2, 1), (1, 1), (2, 2, 2, 2)), 4 * 5),
    ],
)
def test_a_packed_convolution_has_the_same_sums(window: Window, count: int) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(-128, 128, (2, 3, 9, 8)).astype(np.int8)
    weights = rng.integers(-128, 128, (4, 3, *window.kernel)).astype(np.int8)
    expected = convolved(images, weights, window, 5)
    found = list(packings(window, 5, images.shape))
    assert len(found) == count
    for packing, left in found[1:]:
        assert packing is not None
        packed = packing.pack(images)
        assert packed.shape == packing.image(images.shape)
        got = convolved(packed, packing.weights(weights), left, 5)
        np.testing.assert_array_equal(got, expected)


def convolved(images: Array, weights: Array, window: Window, value: int) -> Array:
    top, left, bottom, right = window.pads
    pads = ((0, 0), (0, 0), (top, bottom), (left, right))
    padded = np.pad(images.astype(np.int64), pads, constant_values=value)
    windows = sliding_window_view(padded, window.reach, axis=(2, 3))
    (down, right), (dy, dx) = window.strides, window.dilations
    return np.einsum(
        "nchwyx,ocyx->nohw", windows[:, :, ::down, ::right, ::dy, ::dx], weights.astype(np.int64)
    )


def test_the_host_pads_what_the_machine_cannot() -> None:
    config = PYNQ
    window, image = Window((3, 3), (1, 1), (1, 1), (0, 1, 0, 1)), (1, 16, 32, 32)
    packing, left = best_packing(window, 7, image, 16, input_layout(config), config)
    assert packing is not None
    assert packing.window.kernel == (1, 3)
    assert not any(left.pads)


def test_packing_is_a_line_of_the_table(qdq: Callable[..., Any]) -> None:
    graph = qdq(("n", 3, 8, 8), np.uint8).qdq(0.03, 117).conv(3, 5, pads=[1, 1, 1, 1]).qdq(0.3, 99)
    with Session(graph.model(), "tiny-extended") as session:
        report = session.check({"x": graph.images(2)})
        (layout,) = [layer for layer in session.layers if layer.operator == "layout"]
        assert [layer.placed_on for layer in session.layers] == ["host", "host", "machine", "host"]
    assert report.ok
    assert layout.reason == ("3x3 pixels as channels of one: it writes 1,792 bytes instead of 256")
