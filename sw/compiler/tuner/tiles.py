"""Tile sizes for an extent."""

from __future__ import annotations


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


def cut(extent: int, tile: int) -> list[int]:
    """The sizes of the tiles that cover ``extent``; the last one may be smaller than ``tile``."""
    return [min(tile, extent - begin) for begin in range(0, extent, tile)]
