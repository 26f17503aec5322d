"""How the window of a convolution or pooling moves over an image."""

from __future__ import annotations

from dataclasses import dataclass

from .layout import Image
from .network import Node


@dataclass(frozen=True)
class Window:
    """``pads`` are rows and columns at the top, left, bottom and right."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def reach(self) -> tuple[int, int]:
        """Rows and columns that it spans."""
        down, right = (
            (extent - 1) * gap + 1 for extent, gap in zip(self.kernel, self.dilations, strict=True)
        )
        return down, right

    def size(self, image: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of results, of an image of so many."""
        height, width = (
            (extent + self.pads[axis] + self.pads[2 + axis] - self.reach[axis])
            // self.strides[axis]
            + 1
            for axis, extent in enumerate(image)
        )
        return height, width

    def only(self, rows: bool, columns: bool) -> Window:
        """The part that moves down, the part that moves right, both, or nothing: one pixel."""

        def part(values: tuple[int, int], otherwise: int) -> tuple[int, int]:
            return (values[0] if rows else otherwise, values[1] if columns else otherwise)

        top, left, bottom, right = self.pads
        return Window(
            part(self.kernel, 1),
            part(self.strides, 1),
            part(self.dilations, 1),
            (*part((top, left), 0), *part((bottom, right), 0)),
        )


def window(node: Node, image: Image, out: Image, kernel: tuple[int, ...]) -> Window:
    """How a window moves over an image; padding as far as it reaches, whatever the attributes
    call it."""
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
