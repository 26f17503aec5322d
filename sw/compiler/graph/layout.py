"""Tensors as the machine holds them: cut into tiles, channels and images padded with zeros.

Activations (N, C, H, W) become (N/B, C/K, H, W, B, K). What GEMM reads has K = BLOCK_IN inputs to
a tile, what store writes K = BLOCK_OUT outputs. Where the two are equal, in size and in type, so
are the layouts, and a result is read as it was stored; where they differ, the host converts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config, TileMemory
from amaranth_vta.sw.compiler.build import pack, unpack

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TileLayout:
    """``batch`` images and ``block`` channels of ``dtype`` (as int8 or int4) to a tile."""

    batch: int
    block: int
    dtype: str

    @classmethod
    def of(cls, memory: TileMemory) -> TileLayout:
        return cls(memory.rows, memory.columns, f"int{memory.scalar_width}")

    def shape(self, image: tuple[int, int, int, int]) -> tuple[int, ...]:
        """The shape that activations (N, C, H, W) have in tiles."""
        n, c, h, w = image
        return (tiles(n, self.batch), tiles(c, self.block), h, w, self.batch, self.block)

    def nbytes(self, image: tuple[int, int, int, int]) -> int:
        return prod(self.shape(image)) * int(self.dtype.removeprefix("int")) // 8

    def pack(self, images: Array) -> npt.NDArray[np.uint8]:
        """The bytes of activations (N, C, H, W)."""
        n, c, h, w = images.shape
        shape = self.shape((n, c, h, w))
        padded = np.zeros((shape[0] * self.batch, shape[1] * self.block, h, w), self._numpy)
        padded[:n, :c] = images
        tiled = padded.reshape(shape[0], self.batch, shape[1], self.block, h, w)
        return pack(tiled.transpose(0, 2, 4, 5, 1, 3), self.dtype)

    def unpack(self, data: npt.NDArray[np.uint8], image: tuple[int, int, int, int]) -> Array:
        """The activations of shape ``image`` whose bytes are ``data``."""
        n, c, h, w = image
        shape = self.shape(image)
        tiled = unpack(data, self.dtype).reshape(shape).transpose(0, 4, 1, 5, 2, 3)
        return tiled.reshape(shape[0] * self.batch, shape[1] * self.block, h, w)[:n, :c]

    @property
    def _numpy(self) -> np.dtype[Any]:
        return np.dtype("int8" if self.dtype == "int4" else self.dtype)


def input_layout(config: Config) -> TileLayout:
    """Of what GEMM reads."""
    return TileLayout.of(config.inp)


def output_layout(config: Config) -> TileLayout:
    """Of what store writes, and loads of sign-extended outputs read."""
    return TileLayout.of(config.out)


def pack_weights(weights: Array, config: Config) -> npt.NDArray[np.uint8]:
    """The bytes of weights (outputs, inputs, height, width), as (outputs/BLOCK_OUT,
    inputs/BLOCK_IN, height, width, BLOCK_OUT, BLOCK_IN)."""
    # Rows of a tile are outputs: weights are laid out as images are.
    return TileLayout.of(config.wgt).pack(weights)


def pack_bias(bias: Array, config: Config) -> npt.NDArray[np.uint8]:
    """The bytes of a bias (outputs,), as (outputs/BLOCK_OUT, BATCH, BLOCK_OUT) accumulators."""
    padded = np.zeros(tiles(len(bias), config.block_out) * config.block_out, np.int64)
    padded[: len(bias)] = bias
    rows = np.repeat(padded.reshape(-1, 1, config.block_out), config.batch, axis=1)
    return pack(rows.astype(f"int{config.acc_width}"), f"int{config.acc_width}")


def tiles(extent: int, size: int) -> int:
    return -(-extent // size)
