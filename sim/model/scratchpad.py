"""On-chip memories as arrays of tiles, and the byte layout of tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.tiles import TileMemory

Tiles = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

# Scalars of 4 bits are stored as int8; micro-ops are raw words, so unsigned.
_DTYPES: dict[int, np.dtype[Any]] = {
    4: np.dtype(np.int8),
    8: np.dtype(np.int8),
    16: np.dtype("<i2"),
    32: np.dtype("<i4"),
}
_UOP_DTYPE: np.dtype[Any] = np.dtype("<u4")


class Scratchpad:
    """``tiles``: (depth, rows, columns) of signed integers, or uint32 for micro-ops.

    ``contents``: the bytes of all elements, (depth, element_bytes).
    """

    def __init__(self, memory: TileMemory, contents: Bytes) -> None:
        self.memory = memory
        self.tiles = unpack_tiles(contents, memory)


def initial_bytes(config: Config, seed: int = 0) -> dict[str, Bytes]:
    """Initial contents of uop, inp, wgt and acc, (depth, element_bytes) each: arbitrary bytes,
    determined by ``seed``.
    """
    arbitrary = np.random.default_rng(seed)
    return {
        memory.name.lower(): arbitrary.integers(
            256, size=(memory.depth, memory.element_bytes), dtype=np.uint8
        )
        for memory in (config.uop, config.inp, config.wgt, config.acc)
    }


def unpack_tiles(data: Bytes, memory: TileMemory) -> Tiles:
    """Tiles (…, rows, columns) from their bytes (…, element_bytes), sign-extended."""
    shape = (*data.shape[:-1], memory.rows, memory.columns)
    if memory.scalar_width == 4:
        # The low nibble first; xor and subtract sign-extend it.
        nibbles = np.stack((data & 15, data >> 4), axis=-1).astype(np.int8)
        return ((nibbles ^ 8) - 8).reshape(shape)
    dtype = _UOP_DTYPE if memory.name == "UOP" else _DTYPES[memory.scalar_width]
    return np.ascontiguousarray(data).view(dtype).reshape(shape)


def pack_tiles(tiles: Tiles, memory: TileMemory) -> Bytes:
    """Bytes (…, element_bytes) of tiles (…, rows, columns), truncated to the scalar width."""
    shape = (*tiles.shape[:-2], memory.element_bytes)
    if memory.scalar_width == 4:
        nibbles = (tiles & 15).astype(np.uint8).reshape(*shape, 2)
        return nibbles[..., 0] | np.left_shift(nibbles[..., 1], 4, dtype=np.uint8)
    narrow = tiles.astype(_DTYPES[memory.scalar_width])
    return np.ascontiguousarray(narrow).view(np.uint8).reshape(shape)
