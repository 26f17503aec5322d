"""Pixels of the kernel become channels where that is cheaper, and the sums stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.plan.layout import input_layout
from amaranth_vta.sw.compiler.graph.plan.packing import best_packing
from amaranth_vta.sw.runtime.network.packing import Packing, Window

Array = npt.NDArray[Any]
PYNQ = PRESETS["pynq"]


def convolved(images: Array, weights: Array, window: Window, value: int) -> Array:
    top, left, bottom, right = window.pads
    pads = ((0, 0), (0, 0), (top, bottom), (left, right))
    padded = np.pad(images.astype(np.int64), pads, constant_values=value)
    windows = sliding_window_view(padded, window.reach, axis=(2, 3))
    (down, right), (dy, dx) = window.strides, window.dilations
    return np.einsum(
        "nchwyx,ocyx->nohw", windows[:, :, ::down, ::right, ::dy, ::dx], weights.astype(np.int64)
    )


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(
    "window",
    [
        Window((3, 2), (1, 1), (1, 1), (0, 0, 0, 0)),
        Window((3, 3), (2, 1), (1, 1), (1, 0, 2, 1)),
        Window((2, 4), (1, 3), (2, 1), (0, 3, 1, 0)),
    ],
)
def test_a_packed_convolution_has_the_same_sums(window: Window, rows: bool, columns: bool) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(-128, 128, (2, 3, 9, 8)).astype(np.int8)
    weights = rng.integers(-128, 128, (4, 3, *window.kernel)).astype(np.int8)
    packing, left = Packing(window.only(rows, columns), 5), window.only(not rows, not columns)
    packed = packing.pack(images)
    assert packed.shape == packing.image((2, 3, 9, 8))
    got = convolved(packed, packing.weights(weights), left, 5)
    np.testing.assert_array_equal(got, convolved(images, weights, window, 5))
    assert got.shape[2:] == window.size((9, 8))


def test_unsigned_images_are_packed_as_the_machine_holds_them() -> None:
    packing = Packing(Window((1, 2), (1, 1), (1, 1), (0, 1, 0, 0)), -3)
    packed = packing.pack(np.array([0, 255], np.uint8).reshape(1, 1, 1, 2))
    assert packed.tolist() == [[[[-3, -128]], [[-128, 127]]]]


@pytest.mark.parametrize(
    ("kernel", "stride", "image", "outputs", "packed"),
    [
        # 147 channels, padded to 160, as TARGETS of ResNet-18 have it.
        (7, 2, (1, 3, 224, 224), 64, (7, 7)),
        # Two tiles a pixel would take longer to load than three rows of the kernel to multiply.
        (3, 1, (1, 3, 32, 32), 16, (1, 3)),
        (3, 1, (1, 1, 8, 8), 16, (3, 3)),
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
