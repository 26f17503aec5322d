"""A tensor as a layer of the machine has it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from .factors import FactorBias, FactorWeights
from .packing import Packing
from .tile_layout import Array, Image, TileLayout

Bytes = npt.NDArray[np.uint8]
# What the host makes of a tensor before it is cut into tiles.
HostPacking = Packing | FactorWeights | FactorBias


@dataclass(frozen=True)
class TiledTensor:
    """A tensor as a layer reads or writes it: of shape ``image`` (N, C, H, W), in ``layout``.

    With a ``packing`` the host has packed it before, which only the network's layer knows of.
    """

    tensor: str
    image: Image
    layout: TileLayout
    packing: HostPacking | None = None

    def is_in_memory_of(self, other: TiledTensor) -> bool:
        """Whether both are the same bytes: pixels of a channel may be arranged otherwise."""
        plain = replace(self, image=other.image) == other and self.packing is None
        sizes = [(*item.image[:2], prod(item.image[2:])) for item in (self, other)]
        return self == other or (plain and sizes[0] == sizes[1])

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes(self.packing.image(self.image) if self.packing else self.image)

    @property
    def buffer(self) -> str:
        """A name for where it is."""
        images, channels, *pixels = self.image
        shape = f"{self.tensor} {images}x{channels}x{prod(pixels)} in {self.layout}"
        return shape + (f", {self.packing!r}" if self.packing else "")

    def pack(self, data: Array) -> Bytes:
        """The bytes of the host's ``data``, whose elements are those of the image."""
        images = data.reshape(self.image)
        return self.layout.pack(self.packing.pack(images) if self.packing else images)
