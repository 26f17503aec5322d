"""Index widths of scratchpads, log2 of their depths, that fit the encoding of instructions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import sub

from . import isa


def fitting_widths(
    widths: Mapping[str, int], least: Mapping[str, int], wanted: Mapping[str, int]
) -> dict[str, int] | None:
    """Index widths that fit the encoding: ``widths``, reduced by the fewest bits in total but not
    below ``least``; among equal reductions, the closest to ``wanted``. None if there are none.
    """
    room = [widths[name] - least[name] for name in widths]
    for total in range(sum(room) + 1):
        found = []
        for parts in _partitions(total, room):
            reduced = dict(zip(widths, map(sub, widths.values(), parts), strict=True))
            if isa.encoding_problem(reduced) is None:
                off = sum((reduced[name] - wanted[name]) ** 2 for name in widths)
                # Ties: the one that reduces accumulators least.
                found.append((off, parts[::-1], reduced))
        if found:
            return min(found)[2]
    return None


def _partitions(total: int, room: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All tuples with sum ``total``, each item at most the ``room`` at its position."""
    if not room:
        if total == 0:
            yield ()
        return
    for part in range(min(total, room[0]) + 1):
        yield from ((part, *rest) for rest in _partitions(total - part, room[1:]))
