"""First layers: rows and columns of the kernel become channels, so that few channels fill tiles.

The array takes BLOCK_IN channels of one pixel at a time; an image of three leaves the others idle.
The host, which writes the image anyway, can write beside the channels of a pixel those that the
kernel meets in its columns, in its rows, or in both (im2col: a product of matrices is left). That
takes fewer cycles and, usually, more bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from amaranth_vta.hw.config import Config

from .layout import Array, Image, TileLayout, signed, tiles
from .window import Window


@dataclass(frozen=True)
class Packing:
    """``window`` is what becomes channels, padded with ``value`` (as the machine holds it)."""

    window: Window
    value: int

    def __str__(self) -> str:
        height, width = self.window.kernel
        return f"{height}x{width} pixels as channels of one"

    def image(self, image: Image) -> Image:
        """The shape of an image (N, C, H, W) after packing."""
        height, width = self.window.size(image[2:])
        return image[0], image[1] * self.window.taps, height, width

    def pack(self, images: Array) -> Array:
        """Images (N, C, H, W) as the machine is to hold them, int8."""
        top, left, bottom, right = self.window.pads
        rows, columns = ((0, 0), (0, 0), (top, bottom), (left, right)), (2, 3)
        padded = np.pad(signed(images), rows, constant_values=self.value)
        windows = sliding_window_view(padded, self.window.reach, axis=columns)
        (down, right), (dy, dx) = self.window.strides, self.window.dilations
        taken = windows[:, :, ::down, ::right, ::dy, ::dx].transpose(0, 1, 4, 5, 2, 3)
        return taken.reshape(self.image((*images.shape[:2], *images.shape[2:])))

    def weights(self, weights: Array) -> Array:
        """Weights (outputs, C, kernel height, kernel width) for packed images."""
        (outputs, channels, height, width), (dy, dx) = weights.shape, self.window.kernel
        # An axis of the kernel is packed as a whole or not at all.
        apart = weights.reshape(outputs, channels, dy, height // dy, dx, width // dx)
        packed = apart.transpose(0, 1, 2, 4, 3, 5)
        return packed.reshape(outputs, channels * dy * dx, height // dy, width // dx)


def best_packing(
    window: Window, value: int, image: Image, outputs: int, layout: TileLayout, config: Config
) -> tuple[Packing | None, Window]:
    """How the host best packs ``image`` for a convolution to ``outputs`` channels, None if not at
    all, and the window that is left for the machine.

    Cycles are the larger of MACs and transfers; the fewest bytes decide between equals. ``value``
    is that of padding.
    """

    def cost(choice: tuple[Packing | None, Window]) -> tuple[float, int]:
        packing, left = choice
        packed = packing.image(image) if packing else image
        height, width = left.size(packed[2:])
        taps = tiles(packed[1], config.block_in) * left.taps
        blocks = tiles(outputs, config.block_out)
        cycles = tiles(image[0], config.batch) * blocks * height * width * taps
        loaded = layout.nbytes(packed)
        moved = loaded + taps * blocks * config.wgt.element_bytes
        moved += tiles(image[0], config.batch) * blocks * height * width * config.out.element_bytes
        return max(cycles, moved / config.bus_bytes), loaded

    # What the machine cannot pad, the host pads.
    pads = config.pad_value or not value
    possible = [item for item in _choices(window, value) if pads or not any(item[1].pads)]
    return min(possible or [(None, window)], key=cost)


def _choices(window: Window, value: int) -> Iterator[tuple[Packing | None, Window]]:
    yield None, window
    for rows, columns in product((False, True), repeat=2):
        if (rows and window.kernel[0] > 1) or (columns and window.kernel[1] > 1):
            yield Packing(window.only(rows, columns), value), window.only(not rows, not columns)
