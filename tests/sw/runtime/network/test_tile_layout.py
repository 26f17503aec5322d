"""Tiles contain the tensor's elements, and zeros around them."""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.sw.runtime.network.tile_layout import TileLayout
from amaranth_vta.sw.runtime.scalars import unpack


def test_an_element_is_where_the_order_of_the_axes_says() -> None:
    layout = TileLayout(batch=2, block=4, dtype="int8")
    images = np.arange(3 * 6 * 2 * 5, dtype=np.uint8).astype(np.int8).reshape(3, 6, 2, 5)
    data = unpack(layout.pack(images), "int8").reshape(layout.shape(images.shape))
    assert data.shape == (2, 2, 2, 5, 2, 4)
    for n, c, h, w in np.ndindex(*images.shape):
        assert data[n // 2, c // 4, h, w, n % 2, c % 4] == images[n, c, h, w]
    assert not data[1, :, :, :, 1].any()
    assert not data[:, 1, :, :, :, 2:].any()


@pytest.mark.parametrize("dtype", ["int4", "int8", "int32"])
def test_tiles_become_the_tensor_again(dtype: str) -> None:
    layout = TileLayout(batch=2, block=8, dtype=dtype)
    images = np.random.default_rng(0).integers(-8, 8, (3, 13, 3, 2))
    packed = layout.pack(images.astype(np.int8))
    assert packed.nbytes == layout.nbytes(images.shape)
    got = layout.unpack(packed, images.shape, np.dtype(np.int8))
    np.testing.assert_array_equal(got, images)


def test_unsigned_integers_are_held_less_by_128() -> None:
    layout = TileLayout(batch=1, block=2, dtype="int8")
    images = np.array([0, 1, 127, 128, 255], np.uint8).reshape(1, 5, 1, 1)
    packed = layout.pack(images)
    assert packed.view(np.int8).tolist() == [-128, -127, -1, 0, 127, 0]
    got = layout.unpack(packed, images.shape, images.dtype)
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, images)
