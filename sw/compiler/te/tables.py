"""Tables of 256 bytes, one for each value of a byte, and what is looked up in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import TABLE_BYTES

Array = npt.NDArray[Any]


def table_tiles(results: npt.ArrayLike, config: Config) -> Array:
    """Tiles (`Config.table_elements`, BATCH, BLOCK_OUT) of acc_dtype that hold a table.

    ``results`` (256,) are what the values from -128 to 127 become, each an int8 or uint8. Raises
    `ValueError` for others.
    """
    given = np.asarray(results)
    if given.shape != (TABLE_BYTES,) or given.min() < -128 or given.max() > 255:
        raise ValueError(f"a table has {TABLE_BYTES} results, all int8 or all uint8")
    tile = config.acc
    data = np.zeros(config.table_elements * tile.element_bytes, np.uint8)
    # Entry 0 is that of 0, and negative values are the upper half.
    data[:TABLE_BYTES] = np.roll(given, TABLE_BYTES // 2).astype(np.int64) & 0xFF
    return data.view(f"<i{tile.scalar_width // 8}").reshape(-1, tile.rows, tile.columns)


def looked_up(value: Array, tiles: Array) -> Array:
    """The entry for the low byte of each ``value``, in its dtype; -128 to 127.

    ``tiles`` (..., scalars) hold one table, or one for each value, as its leading dimensions are
    broadcast to those of ``value``; they are of acc_dtype.
    """
    table = np.ascontiguousarray(tiles).view(np.int8)[..., :TABLE_BYTES]
    index = np.asarray(value & (TABLE_BYTES - 1), np.int64)
    if table.ndim == 1:
        return table[index].astype(value.dtype)
    table = np.broadcast_to(table, (*index.shape, TABLE_BYTES))
    return np.take_along_axis(table, index[..., np.newaxis], -1)[..., 0].astype(value.dtype)
