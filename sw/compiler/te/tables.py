"""Lookup tables of 256 bytes, one for each value of a byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import TABLE_BYTES

Array = npt.NDArray[Any]


def table_tiles(results: npt.ArrayLike, config: Config) -> Array:
    """Arrange a table as tiles (`Config.table_elements`, BATCH, BLOCK_OUT) of acc_dtype.

    ``results`` (256,) are the entries for the values from -128 to 127, all int8 or all uint8.
    Raises `ValueError` for other arguments.
    """
    given = np.asarray(results)
    if given.shape != (TABLE_BYTES,) or given.min() < -128 or given.max() > 255:
        raise ValueError(f"a table has {TABLE_BYTES} results, all int8 or all uint8")
    tile = config.acc
    data = np.zeros(config.table_elements * tile.element_bytes, np.uint8)
    # Entry 0 is for the value 0; negative values index the upper half.
    data[:TABLE_BYTES] = np.roll(given, TABLE_BYTES // 2).astype(np.int64) & 0xFF
    return data.view(f"<i{tile.scalar_width // 8}").reshape(-1, tile.rows, tile.columns)


def looked_up(value: Array, tiles: Array) -> Array:
    """The entry, from -128 to 127, for the low byte of each ``value``, in the dtype of ``value``.

    ``tiles`` (..., scalars), of acc_dtype, hold one table, or one per value: leading dimensions
    broadcast to those of ``value``.
    """
    table = np.ascontiguousarray(tiles).view(np.int8)[..., :TABLE_BYTES]
    index = np.asarray(value & (TABLE_BYTES - 1), np.int64)
    if table.ndim == 1:
        return table[index].astype(value.dtype)
    table = np.broadcast_to(table, (*index.shape, TABLE_BYTES))
    return np.take_along_axis(table, index[..., np.newaxis], -1)[..., 0].astype(value.dtype)
