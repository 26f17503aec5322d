"""Packing the kernel's pixels into channels preserves the sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from amaranth_vta.sw.runtime.network.packing import Packing, Window

Array = npt.NDArray[Any]


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
