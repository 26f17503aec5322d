"""Pack pixels under the kernel into channels for first layers, so that few channels fill tiles.

The array processes BLOCK_IN channels of one pixel at a time; an image of three channels leaves most
of them idle. The host, which writes the image anyway, can add to each pixel the channels of all
pixels under the kernel along columns, along rows, or both (im2col, which leaves a matrix product).
This saves cycles but usually takes more bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.runtime.network.packing import Packing, Window
from amaranth_vta.sw.runtime.network.tile_layout import Image, TileLayout, tiles


def best_packing(
    window: Window, value: int, image: Image, outputs: int, layout: TileLayout, config: Config
) -> tuple[Packing | None, Window]:
    """Choose the host's packing of ``image`` for a convolution to ``outputs`` channels. Returns it,
    or None for no packing, and the window that remains for the machine.

    Minimizes the larger of the cycles for MACs and for transfers, then the bytes of the image.
    ``value`` is the padding value.
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

    # The host pads if the machine cannot pad with this value.
    pads = config.pad_value or not value
    possible = [item for item in _choices(window, value) if pads or not any(item[1].pads)]
    return min(possible or [(None, window)], key=cost)


def _choices(window: Window, value: int) -> Iterator[tuple[Packing | None, Window]]:
    yield None, window
    for rows, columns in product((False, True), repeat=2):
        if (rows and window.kernel[0] > 1) or (columns and window.kernel[1] > 1):
            yield Packing(window.only(rows, columns), value), window.only(not rows, not columns)
