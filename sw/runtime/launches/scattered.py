"""Tensors stored in several places: a LOAD or STORE that crosses from one place to the next is
split.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from amaranth_vta.sw.runtime.memory import Buffer
from amaranth_vta.sw.runtime.transfers import NO_PADS, Pads


class ScatteredBuffer:
    """The bytes of a tensor that is stored in ``parts``, in this order."""

    def __init__(self, parts: Sequence[Buffer], name: str) -> None:
        self.parts = tuple(parts)
        self.name = name
        # The first byte of each part.
        self._begins = [0, *accumulate(part.size for part in parts)][:-1]

    def at(self, byte: int) -> tuple[Buffer, int]:
        """The part that contains a byte of the tensor, and the byte's position in the part."""
        number = bisect_right(self._begins, byte) - 1
        return self.parts[number], byte - self._begins[number]


class PartLoad(NamedTuple):
    """A load of ``y_size`` rows of ``x_size`` elements from the element at ``offset`` of
    ``buffer``, with ``pads`` around them, into scratchpad elements that begin ``shift`` after those
    of the whole load.
    """

    buffer: Buffer
    offset: int
    x_size: int
    y_size: int
    pads: Pads
    shift: int


def split_load(
    source: ScatteredBuffer,
    element_bytes: int,
    offset: int,
    x_size: int,
    y_size: int,
    x_stride: int,
    pads: Pads,
) -> Iterator[PartLoad]:
    """Split a load of rows, as `Runtime.load_buffer_2d` takes them, into loads from one part each.
    Sizes and positions of parts must be multiples of ``element_bytes``.
    """
    nothing = PartLoad(source.parts[0], 0, x_size, 0, NO_PADS, 0)
    if not x_size or not y_size:
        yield nothing._replace(y_size=y_size, pads=pads)
        return
    width = pads.x_before + x_size + pads.x_after
    sides = pads._replace(y_before=0, y_after=0)
    loads = [*_loads(source, element_bytes, offset, (x_size, y_size, x_stride), sides)]
    if loads[0].x_size < x_size and pads.y_before:
        loads.insert(0, nothing._replace(pads=sides))
    if loads[-1].x_size < x_size and pads.y_after:
        loads.append(nothing._replace(pads=sides, shift=y_size * width))
    for number, load in enumerate(loads):
        above = pads.y_before if number == 0 else 0
        below = pads.y_after if number == len(loads) - 1 else 0
        shift = load.shift + (pads.y_before * width if number else 0)
        around = load.pads._replace(y_before=above, y_after=below)
        yield load._replace(pads=around, shift=shift)


def _loads(
    source: ScatteredBuffer,
    element_bytes: int,
    offset: int,
    rows: tuple[int, int, int],
    sides: Pads,
) -> Iterator[PartLoad]:
    """Like `split_load`, without padding above and below: as many whole rows as possible from each
    part, and rows that several parts share in pieces."""
    x_size, y_size, x_stride = rows
    width, row = sides.x_before + x_size + sides.x_after, 0
    while row < y_size:
        done = 0
        while done < x_size:
            part, byte = source.at((offset + row * x_stride + done) * element_bytes)
            begin, room = byte // element_bytes, (part.size - byte) // element_bytes
            if room >= x_size and not done:
                count = min((room - x_size) // x_stride + 1 if x_stride else y_size, y_size - row)
                yield PartLoad(part, begin, x_size, count, sides, row * width)
                row += count - 1
                break
            taken = min(room, x_size - done)
            ends = sides._replace(
                x_before=0 if done else sides.x_before,
                x_after=sides.x_after if done + taken == x_size else 0,
            )
            shift = row * width + (sides.x_before + done if done else 0)
            yield PartLoad(part, begin, taken, 1, ends, shift)
            done += taken
        row += 1


class PartStore(NamedTuple):
    """A store of accumulators that begin ``shift`` after those of the whole store, to ``y_size``
    rows of ``x_size`` elements from the element at ``offset`` of ``buffer``, rows ``x_stride``
    elements apart.
    """

    buffer: Buffer
    offset: int
    x_size: int
    y_size: int
    x_stride: int
    shift: int


def split_store(
    target: ScatteredBuffer,
    element_bytes: int,
    offset: int,
    x_size: int,
    y_size: int,
    x_stride: int,
) -> Iterator[PartStore]:
    """Split a store of rows, as `Runtime.store_buffer_2d` takes them, into as few stores as cover
    equal pieces at equal distances. Sizes and positions of parts must be multiples of
    ``element_bytes``.
    """
    found: PartStore | None = None
    for piece in _pieces(target, element_bytes, offset, x_size, y_size, x_stride):
        joined = None if found is None else _with_row(found, piece)
        if found is not None and joined is None:
            yield found
        found = joined or piece
    if found is not None:
        yield found


def _pieces(
    target: ScatteredBuffer, element_bytes: int, offset: int, *rows: int
) -> Iterator[PartStore]:
    """Stores of consecutive elements, each as long as possible."""
    x_size, y_size, x_stride = rows
    found: PartStore | None = None
    for number in range(x_size * y_size):
        y, x = divmod(number, x_size)
        part, byte = target.at((offset + y * x_stride + x) * element_bytes)
        whole = part.whole
        element = (part.address + byte - whole.address) // element_bytes
        if found is not None and found.buffer is whole and found.offset + found.x_size == element:
            found = found._replace(x_size=found.x_size + 1)
            continue
        if found is not None:
            yield found
        found = PartStore(whole, element, 1, 1, 0, number)
    if found is not None:
        yield found


def _with_row(store: PartStore, row: PartStore) -> PartStore | None:
    """``store`` and its next ``row``; None if they are not one store."""
    distance = row.offset - (store.offset + (store.y_size - 1) * store.x_stride)
    alike = (row.buffer, row.x_size) == (store.buffer, store.x_size)
    fits = store.y_size == 1 or distance == store.x_stride
    if not alike or not fits or distance < 0:
        return None
    return store._replace(y_size=store.y_size + 1, x_stride=distance)
