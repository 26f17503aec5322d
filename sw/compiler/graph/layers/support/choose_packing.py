"""Pack pixels under the kernel into channels for first layers, so that few channels fill tiles.

The array processes BLOCK_IN channels of one pixel at a time; an image of three channels leaves most
of them idle. The host, which writes the image anyway, can pack neighbouring pixels into one, along
each axis either all pixels under the kernel, or blocks of fewer. All of both axes (im2col) leave a
matrix product, which takes the fewest cycles but the most bytes. Blocks as large as the stride
(space to depth) take the fewest bytes: each pixel of the image is in one block.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.runtime.network.packing import Packing, Window, WindowAxis
from amaranth_vta.sw.runtime.network.tile_layout import Image, TileLayout, tiles

# Share of the shorter of MACs and transfers that does not overlap with the longer.
_EXPOSED = 1 / 8


def best_packing(
    window: Window,
    value: int,
    image: Image,
    outputs: int,
    layout: TileLayout,
    config: Config,
    is_expansion: bool = False,
) -> tuple[Packing | None, Window]:
    """Choose the host's packing of ``image`` for a convolution to ``outputs`` channels. Returns it,
    or None for no packing, and the window that remains for the machine.

    MACs and transfers overlap for the most part: minimizes the cycles of the longer plus a share of
    the shorter, then the bytes of the image. If the convolution ``is_expansion``, which a depthwise
    convolution follows, it is packed to a 1×1 convolution, since only these are fused. ``value`` is
    the padding value.
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
        words = moved / config.bus_bytes
        return max(cycles, words) + _EXPOSED * min(cycles, words), loaded

    # The host pads if the machine cannot pad with this value.
    pads = config.pad_value or not value
    choices = packings(window, value, image)
    possible = [item for item in choices if pads or not any(item[1].pads)]
    if is_expansion:
        possible = [item for item in possible if item[1].taps == 1] or possible
    return min(possible or [(None, window)], key=cost)


def packings(window: Window, value: int, image: Image) -> Iterator[tuple[Packing | None, Window]]:
    """All packings of ``image`` for a convolution with ``window``, and what `best_packing` returns
    with each; no packing is the first.
    """
    ways = (_divided(axis, size) for axis, size in zip(window.axes, image[2:], strict=True))
    for (rows, rows_left), (columns, columns_left) in product(*ways):
        packed = Window.along(rows, columns)
        packing = Packing(packed, value) if packed.taps > 1 else None
        yield packing, Window.along(rows_left, columns_left)


def _divided(axis: WindowAxis, size: int) -> Iterator[tuple[WindowAxis, WindowAxis]]:
    """The ways to divide a window along an axis of an image of ``size`` pixels: the window of the
    pixels that are packed into one, and the window that remains over packed pixels.
    """
    yield WindowAxis(), axis
    if axis.kernel > 1:
        yield axis, WindowAxis()
    if axis.dilation > 1:
        return
    kernel, stride, _, before, after = axis
    results = (before + size + after - kernel) // stride + 1
    for block in range(stride, kernel, stride):
        taps = -(-kernel // block)
        beyond = (results - 1) * stride + taps * block - before - size
        if block > 1 and beyond >= 0:
            left = WindowAxis(taps, dilation=block // stride)
            yield WindowAxis(block, stride, 1, before, beyond), left
