"""Windows that slide over images: sizes and padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.runtime.network.packing import Window

Pads = tuple[int, int, int, int]


class SlidingWindow:
    """Base of operators with a sliding window; subclasses have these fields: ``batch`` in tiles of
    images, ``height`` and ``width`` of the input in pixels, and ``pads`` at its top, left, bottom
    and right.
    """

    batch: int
    height: int
    width: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: Pads
    dilations: tuple[int, int] = (1, 1)

    @property
    def output_height(self) -> int:
        return self._output[0]

    @property
    def output_width(self) -> int:
        return self._output[1]

    @cached_property
    def _output(self) -> tuple[int, int]:
        window = Window(self.kernel, self.strides, self.dilations, self.pads)
        return window.size((self.height, self.width))

    def of_rows(self, rows: int) -> Self:
        """An operator like ``rows`` rows of results, without padding above and below."""
        _, left, _, right = self.pads
        window: Any = self
        return replace(window, height=self.input_rows(rows), pads=(0, left, 0, right))

    def input_rows(self, rows: int, kernel_rows: int | None = None) -> int:
        """Rows of input that ``rows`` rows of output read through ``kernel_rows`` rows of the
        kernel, by default all of them.
        """
        taps = self.kernel[0] if kernel_rows is None else kernel_rows
        return (rows - 1) * self.strides[0] + (taps - 1) * self.dilations[0] + 1

    def input_columns(self, columns: int, kernel_columns: int | None = None) -> int:
        """Like `input_rows`, for columns."""
        taps = self.kernel[1] if kernel_columns is None else kernel_columns
        return (columns - 1) * self.strides[1] + (taps - 1) * self.dilations[1] + 1


class ChannelWindow(SlidingWindow):
    """Base of operators with a window for each channel; ``batch`` and ``channels`` count tiles."""

    batch: int
    channels: int

    @property
    def extents(self) -> Mapping[int, int]:
        return {-6: self.batch, -5: self.channels, -4: self.output_height}

    def part(self, axis: int, extent: int) -> Self:
        window: Any = self
        if axis == -6:
            return replace(window, batch=extent)
        return replace(window, channels=extent) if axis == -5 else self.of_rows(extent)


def padded(x: Tensor, pads: Pads, value: int, name: str) -> Tensor:
    """``x`` (…, height, width, BATCH, BLOCK) padded by ``pads`` with ``value``."""
    outside = [0] * (len(x.shape) - 4)
    top, left, bottom, right = pads
    return te.pad(x, (*outside, top, left, 0, 0), (*outside, bottom, right, 0, 0), value, name=name)
