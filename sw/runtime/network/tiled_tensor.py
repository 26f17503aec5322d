"""A tensor in the tile layout in which a layer reads or writes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from .factors import FactorBias, FactorWeights
from .packing import Packing
from .tile_layout import Array, Image, TileLayout

Bytes = npt.NDArray[np.uint8]
# How the host packs a tensor before tiling.
HostPacking = Packing | FactorWeights | FactorBias


@dataclass(frozen=True)
class TiledTensor:
    """A tensor as a layer reads or writes it: of shape ``image`` (N, C, H, W), in ``layout``.

    With a ``packing``, the host first packs the tensor for this layer.
    """

    tensor: str
    image: Image
    layout: TileLayout
    packing: HostPacking | None = None

    def is_in_memory_of(self, other: TiledTensor) -> bool:
        """Whether both have the same bytes in memory; height and width may differ if H · W is
        equal.
        """
        plain = replace(self, image=other.image) == other and self.packing is None
        sizes = [(*item.image[:2], prod(item.image[2:])) for item in (self, other)]
        return self == other or (plain and sizes[0] == sizes[1])

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes(self.packing.image(self.image) if self.packing else self.image)

    @property
    def buffer(self) -> str:
        """The name of its buffer."""
        images, channels, *pixels = self.image
        shape = f"{self.tensor} {images}x{channels}x{prod(pixels)} in {self.layout}"
        return shape + (f", {self.packing!r}" if self.packing else "")

    def pack(self, data: Array) -> Bytes:
        """Pack the host's ``data``, which has the elements of the image in any shape, to bytes."""
        images = data.reshape(self.image)
        return self.layout.pack(self.packing.pack(images) if self.packing else images)
