"""Tile layouts of tensors on the machine, with channels and images padded with zeros.

Scalars are signed: a uint8 of the graph is stored as an int8, minus 128.

Activations (N, C, H, W) become (N/B, C/K, H, W, B, K). Tiles read by GEMM have K = BLOCK_IN
channels, tiles written by store K = BLOCK_OUT. If both have the same size and type, the layouts are
equal, and a result is read as stored; otherwise the host converts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.tiles import TileMemory
from amaranth_vta.sw.runtime.scalars import pack, unpack

Array = npt.NDArray[Any]
# N, C, H, W.
Image = tuple[int, int, int, int]


@dataclass(frozen=True)
class TileLayout:
    """``batch`` images and ``block`` channels of ``dtype`` (such as int8 or int4) per tile.

    Whole sums, which are wider than ``dtype``, are stored in several ``parts``: activations, lowest
    bits first.
    """

    batch: int
    block: int
    dtype: str
    parts: int = 1

    def __str__(self) -> str:
        parts = f" in {self.parts} parts" if self.parts > 1 else ""
        return f"tiles of {self.batch}x{self.block} {self.dtype}{parts}"

    @property
    def width(self) -> int:
        """Bits of a scalar of ``dtype``."""
        return int(self.dtype.removeprefix("int"))

    @classmethod
    def of(cls, memory: TileMemory) -> TileLayout:
        return cls(memory.rows, memory.columns, f"int{memory.scalar_width}")

    def shape(self, image: Image) -> tuple[int, ...]:
        """The shape of activations (N, C, H, W) in tiles: (N/B, C/K, H, W, B, K)."""
        n, c, h, w = image
        return (tiles(n, self.batch), tiles(c, self.block), h, w, self.batch, self.block)

    def nbytes(self, image: Image) -> int:
        return self.parts * prod(self.shape(image)) * self.width // 8

    def pack(self, images: Array) -> npt.NDArray[np.uint8]:
        """Pack activations (N, C, H, W) to bytes."""
        images = signed(images)
        n, c, h, w = images.shape
        shape = self.shape((n, c, h, w))
        padded = np.zeros((shape[0] * self.batch, shape[1] * self.block, h, w), self._numpy)
        padded[:n, :c] = images
        tiled = padded.reshape(shape[0], self.batch, shape[1], self.block, h, w)
        return pack(tiled.transpose(0, 2, 4, 5, 1, 3), self.dtype)

    def unpack(self, data: npt.NDArray[np.uint8], image: Image, dtype: np.dtype[Any]) -> Array:
        """Unpack ``data`` to activations of shape ``image`` and ``dtype``."""
        n, c, h, w = image
        shape = self.shape(image)
        scalars = self._joined(unpack(data, self.dtype))
        tiled = scalars.reshape(shape).transpose(0, 4, 1, 5, 2, 3)
        held = tiled.reshape(shape[0] * self.batch, shape[1] * self.block, h, w)[:n, :c]
        return (held.astype(np.int64) + offset(dtype)).astype(dtype)

    def _joined(self, scalars: Array) -> Array:
        """Combine scalars whose parts are consecutive in ``scalars``."""
        if self.parts == 1:
            return scalars
        *low, high = scalars.astype(np.int64).reshape(self.parts, -1)
        whole: Array = high << self.width * len(low)
        for number, part in enumerate(low):
            whole |= (part & (1 << self.width) - 1) << self.width * number
        return whole

    @property
    def _numpy(self) -> np.dtype[Any]:
        return np.dtype("int8" if self.dtype == "int4" else self.dtype)


def offset(dtype: np.dtype[Any]) -> int:
    """Difference between the graph's and the machine's integers: 128 for uint8, else 0."""
    return 128 if dtype == np.uint8 else 0


def signed(values: Array) -> Array:
    """The graph's integers as the signed integers that the machine stores."""
    return (values ^ np.uint8(128)).view(np.int8) if values.dtype == np.uint8 else values


def tiles(extent: int, size: int) -> int:
    return -(-extent // size)
