"""Pixels under a window are packed into channels."""

from __future__ import annotations

import numpy as np

from amaranth_vta.sw.runtime.network.packing import Packing, Window


def test_unsigned_images_are_packed_as_the_machine_holds_them() -> None:
    packing = Packing(Window((1, 2), (1, 1), (1, 1), (0, 1, 0, 0)), -3)
    packed = packing.pack(np.array([0, 255], np.uint8).reshape(1, 1, 1, 2))
    assert packed.tolist() == [[[[-3, -128]], [[-128, 127]]]]
