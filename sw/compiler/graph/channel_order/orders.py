"""Choose the order of a tensor's channels, so that each reader reads few tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from amaranth_vta.sw.runtime.network.tile_layout import tiles

# The readers of a channel, by number; earlier readers have smaller numbers.
Readers = frozenset[int]


@dataclass(frozen=True)
class Order:
    """The places of a tensor's channels: channel c is in place ``places[c]`` of ``count``; other
    places are padding. In the network's own order, places are counted without padding.
    """

    places: tuple[int, ...]
    count: int

    @staticmethod
    def own(channels: int) -> Order:
        return Order(tuple(range(channels)), channels)

    @property
    def channels(self) -> list[int]:
        """The channel in each place; -1 for padding."""
        found = [-1] * self.count
        for channel, place in enumerate(self.places):
            found[place] = channel
        return found


def chosen_order(
    readers: Sequence[Readers], written: float, read: Mapping[int, float], block: int
) -> Order:
    """Place channels with the same ``readers`` side by side, and begin with a new tile where that
    costs fewer cycles: each tile ``written``, and for each reader ``read`` per tile.
    """
    groups: dict[Readers, list[int]] = {}
    for channel, own in enumerate(readers):
        groups.setdefault(own, []).append(channel)
    members = [groups[own] for own in sorted(groups, key=sorted)]
    kinds = [readers[group[0]] for group in members]
    sizes = [len(group) for group in members]

    def cost(begins: frozenset[int]) -> float:
        total, seen = 0.0, dict.fromkeys(read, -1)
        for (first, last), kind in zip(_tiles(sizes, begins, block), kinds, strict=True):
            for reader in kind:
                fresh = max(first, seen[reader] + 1)
                total += read[reader] * max(last + 1 - fresh, 0)
                seen[reader] = max(seen[reader], last)
        return total + written * (last + 1)

    begun = range(1, len(sizes))
    starts = (_improved(frozenset(first), begun, cost) for first in ((), begun))
    best = min(starts, key=cost)
    places = [0] * len(readers)
    for group, begin in zip(members, _begins(sizes, best, block), strict=True):
        for at, channel in enumerate(group, begin):
            places[channel] = at
    return Order(tuple(places), tiles(max(places) + 1, block) * block)


def _improved(
    chosen: frozenset[int], numbers: Iterable[int], cost: Callable[[frozenset[int]], float]
) -> frozenset[int]:
    """Add or remove one of ``numbers`` at a time as long as that reduces the ``cost``."""
    least, before = cost(chosen), None
    while before != chosen:
        before = chosen
        for number in numbers:
            other = chosen ^ {number}
            if (cycles := cost(other)) < least:
                chosen, least = other, cycles
    return chosen


def _begins(sizes: Iterable[int], new_tiles: frozenset[int], block: int) -> list[int]:
    """The first place of each group; the groups ``new_tiles`` begin with a tile."""
    begins, end = [], 0
    for number, size in enumerate(sizes):
        begin = tiles(end, block) * block if number in new_tiles else end
        begins.append(begin)
        end = begin + size
    return begins


def _tiles(sizes: Sequence[int], new_tiles: frozenset[int], block: int) -> list[tuple[int, int]]:
    """The first and the last tile of each group."""
    begins = _begins(sizes, new_tiles, block)
    return [(at // block, (at + size - 1) // block) for at, size in zip(begins, sizes, strict=True)]
