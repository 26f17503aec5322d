"""Packs pixels into channels on the host, for layers with few channels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .tile_layout import Array, Image, signed


class WindowAxis(NamedTuple):
    """A sliding window along one axis, with padding ``before`` and ``after`` the image."""

    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0


@dataclass(frozen=True)
class Window:
    """A sliding window over an image; ``pads`` are rows and columns at the top, left, bottom and
    right.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @cached_property
    def reach(self) -> tuple[int, int]:
        """Rows and columns that the dilated window spans."""
        (height, width), (down, right) = self.kernel, self.dilations
        return (height - 1) * down + 1, (width - 1) * right + 1

    def size(self, image: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of results for an ``image`` of (rows, columns)."""
        # Unrolled for both axes: schedule searches call this often.
        top, left, bottom, right = self.pads
        rows = (image[0] + top + bottom - self.reach[0]) // self.strides[0] + 1
        columns = (image[1] + left + right - self.reach[1]) // self.strides[1] + 1
        return rows, columns

    @property
    def axes(self) -> tuple[WindowAxis, WindowAxis]:
        """The window along rows and along columns."""
        top, left, bottom, right = self.pads
        rows, columns = zip(self.kernel, self.strides, self.dilations, strict=True)
        return WindowAxis(*rows, top, bottom), WindowAxis(*columns, left, right)

    @classmethod
    def along(cls, rows: WindowAxis, columns: WindowAxis) -> Window:
        """The window with these axes."""
        kernels, strides, dilations, before, after = zip(rows, columns, strict=True)
        return cls(kernels, strides, dilations, (*before, *after))


@dataclass(frozen=True)
class Packing:
    """Packs the pixels under ``window`` into channels; padding has the signed ``value``."""

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
        """int8 images (N, C, H, W), packed."""
        top, left, bottom, right = self.window.pads
        rows, columns = ((0, 0), (0, 0), (top, bottom), (left, right)), (2, 3)
        padded = np.pad(signed(images), rows, constant_values=self.value)
        windows = sliding_window_view(padded, self.window.reach, axis=columns)
        (down, right), (dy, dx) = self.window.strides, self.window.dilations
        taken = windows[:, :, ::down, ::right, ::dy, ::dx].transpose(0, 1, 4, 5, 2, 3)
        return taken.reshape(self.image((*images.shape[:2], *images.shape[2:])))

    def weights(self, weights: Array) -> Array:
        """Weights (outputs, C, kernel height, kernel width), packed to match packed images."""
        (outputs, channels, *kernel), (dy, dx) = weights.shape, self.window.kernel
        # Taps beyond the kernel are zeros.
        height, width = -(-kernel[0] // dy), -(-kernel[1] // dx)
        beyond = (0, height * dy - kernel[0]), (0, width * dx - kernel[1])
        whole = np.pad(weights, ((0, 0), (0, 0), *beyond))
        apart = whole.reshape(outputs, channels, height, dy, width, dx)
        packed = apart.transpose(0, 1, 3, 5, 2, 4)
        return packed.reshape(outputs, channels * dy * dx, height, width)
