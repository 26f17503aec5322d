"""Windows of convolutions and poolings: from ONNX attributes, and the pixels that they count."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.runtime.network.packing import Window
from amaranth_vta.sw.runtime.network.tile_layout import Image


def window(node: Node, image: Image, out: Image, kernel: tuple[int, ...]) -> Window:
    """The window of a convolution or pooling, by pads or auto_pad. Padding at the end extends
    exactly as far as the windows reach."""
    attributes = node.attributes
    kernel = tuple(attributes.get("kernel_shape", kernel))
    strides = tuple(attributes.get("strides", (1, 1)))
    dilations = tuple(attributes.get("dilations", (1, 1)))
    pads = list(attributes.get("pads", (0, 0, 0, 0)))
    automatic = attributes.get("auto_pad", "NOTSET")
    for axis in (0, 1):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        spanned = (out[2 + axis] - 1) * strides[axis] + reach
        if automatic in ("SAME_UPPER", "SAME_LOWER"):
            total = max(spanned - image[2 + axis], 0)
            pads[axis] = total // 2 if automatic == "SAME_UPPER" else total - total // 2
        pads[2 + axis] = max(spanned - image[2 + axis] - pads[axis], 0)
    return Window(
        (kernel[0], kernel[1]),
        (strides[0], strides[1]),
        (dilations[0], dilations[1]),
        (pads[0], pads[1], pads[2], pads[3]),
    )


def counted_pixels(
    moved: Window, axis: int, counted: tuple[int, int], results: int
) -> npt.NDArray[np.int64]:
    """Count the rows (or columns) of each window that lie within the half-open range
    ``counted``."""
    begin = np.arange(results) * moved.strides[axis] - moved.pads[axis]
    return np.minimum(begin + moved.kernel[axis], counted[1]) - np.maximum(begin, counted[0])
