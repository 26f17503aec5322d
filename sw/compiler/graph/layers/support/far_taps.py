"""Reshape sequences to images for convolutions with large dilations.

A tile of a one-row image must hold the whole span of its taps, which exceeds the scratchpad for
large dilations. Reshaping the sequence to rows whose length divides the dilation leaves the bytes
in memory unchanged and turns the kernel into a column, whose taps the machine can load one at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd
from typing import TypeVar

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.tuner.workload import Workload, choose
from amaranth_vta.sw.runtime.network.packing import Window
from amaranth_vta.sw.runtime.network.tile_layout import Array, Image

Made = TypeVar("Made", bound=Workload)


@dataclass(frozen=True)
class View:
    """A ``window`` over an ``image`` (N, C, H, W); if ``turned``, its kernel is a column."""

    window: Window
    image: Image
    turned: bool = False

    def weights(self, weights: Array) -> Array:
        """``weights`` (outputs, inputs, 1, taps), arranged for this window."""
        return weights.swapaxes(2, 3) if self.turned else weights


def best_view(
    moved: Window, image: Image, out: Image, workload: Callable[[View], Made], config: Config
) -> tuple[View, Made]:
    """Return the view with the fewest estimated cycles, and its ``workload``."""
    possible = [(view, workload(view)) for view in _views(moved, image, out)]
    if len(possible) == 1:
        return possible[0]
    return min(possible, key=lambda item: choose(item[1], config).cycles)


def _views(moved: Window, image: Image, out: Image) -> Iterator[View]:
    """Yield views: the unchanged ``image``, rows of the largest possible length, and rows of one
    pixel. The bytes of the results, ``out``, are the same in all views."""
    yield View(moved, image)
    (rows, taps), (_, stride), (_, dilation) = moved.kernel, moved.strides, moved.dilations
    top, begin, bottom, _ = moved.pads
    if (image[2], rows, top, bottom) != (1, 1, 0, 0) or taps == 1 or dilation == 1:
        return
    length = gcd(image[3], out[3] * stride, dilation, begin)
    for width in dict.fromkeys((length, 1)):
        # Stride along rows, or, if rows have one pixel, across rows.
        strides = (stride, 1) if width == 1 else (1, stride)
        if width % strides[1]:
            continue
        height, apart, above = image[3] // width, dilation // width, begin // width
        results = out[3] // (width // strides[1])
        reach = (results - 1) * strides[0] + (taps - 1) * apart + 1
        pads = above, 0, max(reach - height - above, 0), 0
        window = Window((taps, 1), strides, (apart, 1), pads)
        yield View(window, (*image[:2], height, width), True)
