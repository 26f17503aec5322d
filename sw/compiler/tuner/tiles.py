"""Tile sizes for an extent."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
NO_TILES = np.empty((0, 0), np.int64)


def even_tiles(extent: int) -> list[int]:
    """Tile sizes that split ``extent`` as evenly as possible, largest first."""
    return sorted({-(-extent // parts) for parts in range(1, extent + 1)}, reverse=True)


def divisors(extent: int) -> list[int]:
    """Tile sizes that divide ``extent``, largest first. A remainder of an accumulation would have a
    loop nest of its own, which does not overlap with the main one.
    """
    return [tile for tile in range(extent, 0, -1) if extent % tile == 0]


def parts(extent: int, tile: int) -> int:
    """Number of tiles that cover ``extent``."""
    return -(-extent // tile)


def cut(extent: int, tile: int, first: int = 0) -> list[int]:
    """The sizes of the tiles that cover ``extent``; the last one may be smaller than ``tile``. If
    ``first`` is given, the first one has that size.
    """
    begun = [min(first, extent)] if first else []
    return [*begun, *(min(tile, extent - begin) for begin in range(first, extent, tile))]


def all_tiles(*extents: int) -> Array:
    """All combinations of `even_tiles` of each extent: int64 (tiles, axes)."""
    return np.array(list(product(*map(even_tiles, extents))), np.int64)


def contiguous_tiles(extents: Sequence[int]) -> Array:
    """Tiles that are ranges of one axis, with all of the axes inside it, and one element of each
    axis outside: int64 (tiles, axes).
    """
    found = [
        (*[1] * axis, size, *extents[axis + 1 :])
        for axis in range(len(extents))
        for size in even_tiles(extents[axis])
    ]
    return np.array(list(dict.fromkeys(found)), np.int64)
