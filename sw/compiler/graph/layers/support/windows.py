"""Windows of convolutions and poolings that the machine supports."""

from __future__ import annotations

from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.graph.windows import window
from amaranth_vta.sw.runtime.network.packing import Window
from amaranth_vta.sw.runtime.network.tile_layout import Image

from .layer import Unsupported


def fitting_window(node: Node, image: Image, out: Image, kernel: tuple[int, ...]) -> Window:
    """The `window`. Raises `Unsupported` unless all windows lie within the padded image."""
    moved = window(node, image, out, kernel)
    if moved.size(image[2:]) != out[2:]:
        raise Unsupported("its last windows reach beyond the padding")
    return moved
