"""Micro-op sequences in device memory, cached in the micro-op buffer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa

from .memory import Buffer, DeviceMemory

_UOP_BYTES = isa.UOP_WIDTH // 8
# Micro-ops per device-memory buffer that is allocated for them.
_CHUNK = 1 << 14


@dataclass(eq=False)
class UopSequence:
    """A sequence of micro-ops that is loaded as a unit.

    In device memory it occupies ``count`` elements of ``buffer`` from ``offset`` on. In the micro-
    op buffer it starts at ``begin``, None if it is not loaded.
    """

    buffer: Buffer
    offset: int
    count: int
    begin: int | None = None
    last_use: int = 0

    def read(self) -> npt.NDArray[np.uint32]:
        """The micro-ops, from device memory."""
        return self.buffer.read(np.uint32, self.count, self.offset * _UOP_BYTES)


class UopStore:
    """Micro-op sequences in device memory, contiguous in a few buffers; equal ones once."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._sequences: dict[bytes, UopSequence] = {}
        self.buffers: list[Buffer] = []
        self._room = 0

    def used_bytes(self) -> dict[Buffer, int]:
        """Bytes that hold micro-ops, per buffer."""
        used = {buffer: buffer.size for buffer in self.buffers}
        if self.buffers:
            used[self.buffers[-1]] -= self._room * _UOP_BYTES
        return used

    def intern(self, uops: npt.NDArray[np.uint32]) -> UopSequence:
        """The sequence with these contents, written to device memory if new.

        Raises `OutOfMemory`.
        """
        content = uops.tobytes()
        sequence = self._sequences.get(content)
        if sequence is None:
            if uops.size > self._room:
                capacity = max(_CHUNK, uops.size)
                name = f"micro-ops {len(self.buffers)}"
                self.buffers.append(self._memory.allocate(capacity * _UOP_BYTES, name))
                self._room = capacity
            buffer = self.buffers[-1]
            offset = buffer.size // _UOP_BYTES - self._room
            buffer.write(uops, offset * _UOP_BYTES)
            self._room -= uops.size
            sequence = self._sequences[content] = UopSequence(buffer, offset, uops.size)
        return sequence

    def together(self, sequences: Sequence[UopSequence]) -> UopSequence:
        """One sequence with the contents of ``sequences``, which may be adjacent.

        Raises `OutOfMemory`.
        """
        first, count = sequences[0], 0
        for sequence in sequences:
            if sequence.buffer is not first.buffer or sequence.offset != first.offset + count:
                return self.intern(np.concatenate([item.read() for item in sequences]))
            count += sequence.count
        return UopSequence(first.buffer, first.offset, count)


class UopCache:
    """Caches sequences in the micro-op buffer of ``depth`` elements, with LRU eviction.

    Overwriting is safe while instructions that use the old contents are in flight: compute both
    loads and uses micro-ops, in order.
    """

    def __init__(self, depth: int) -> None:
        # Per buffer element, the last use of the sequence there; 0 if free.
        self._last_use = np.zeros(depth, np.int64)
        self._resident: list[tuple[int, UopSequence]] = []  # by `begin`, which is the first item
        self._clock = 0
        # Sequences that were resident at the last `take_reused` and have been used since.
        self._reused: list[tuple[int, UopSequence]] = []
        self._last_take = 0

    def place(self, sequence: UopSequence) -> tuple[int, bool]:
        """The start of the sequence in the micro-op buffer, and whether it must be loaded there."""
        begin = sequence.begin
        missing = begin is None
        if begin is None:
            begin = sequence.begin = self._best_place(sequence.count)
            self._overwrite(begin, sequence)
        elif sequence.last_use <= self._last_take:
            self._reused.append((begin, sequence))
        self._clock += 1
        sequence.last_use = self._clock
        self._last_use[begin : begin + sequence.count] = self._clock
        return begin, missing

    def place_all(self, sequences: Iterable[UopSequence]) -> list[tuple[int, UopSequence]]:
        """Place ``sequences`` in the micro-op buffer, which must have room for all. Returns those
        that must be loaded, with the start of each.
        """
        placed = [(sequence, *self.place(sequence)) for sequence in sequences]
        return [(begin, sequence) for sequence, begin, missing in placed if missing]

    def resident(self) -> list[tuple[int, UopSequence]]:
        """The sequences in the micro-op buffer, with the start of each."""
        return self._resident.copy()

    def take_reused(self) -> list[tuple[int, UopSequence]]:
        """The sequences that were resident at the last call and have been used there since, with
        the start of each, in this order.
        """
        reused, self._reused, self._last_take = self._reused, [], self._clock
        return sorted(reused, key=itemgetter(0))

    def clear(self) -> None:
        """Invalidate the cache, for use after others have used the machine."""
        for _, item in self._resident:
            item.begin = None
        self._resident = []
        self._last_use[:] = 0

    def _best_place(self, count: int) -> int:
        """Start of the least recently used range of ``count`` elements. The lowest of several: it
        cannot start inside a resident sequence, since a range one element earlier would be as old.
        """
        latest, width = self._last_use, 1  # latest use within each range of width
        while width < count:
            step = min(width, count - width)
            latest = np.maximum(latest[:-step], latest[step:])
            width += step
        return int(latest.argmin())

    def _overwrite(self, begin: int, sequence: UopSequence) -> None:
        """Put ``sequence`` at ``begin`` and evict the sequences that it overlaps."""
        first = bisect_left(self._resident, (begin,))
        end = bisect_left(self._resident, (begin + sequence.count,))
        for start, item in self._resident[first:end]:
            self._last_use[start : start + item.count] = 0
            item.begin = None
        self._resident[first:end] = [(begin, sequence)]


def merged_loads(
    places: Iterable[tuple[int, UopSequence]], store: UopStore
) -> list[tuple[int, UopSequence]]:
    """Loads that bring sequences to these places in the micro-op buffer: sequences that are
    adjacent there are loaded together. If they are not adjacent in device memory, ``store`` gets
    another copy: a LOAD of few micro-ops takes as long as the transfers of others before it.
    """
    groups: list[tuple[int, list[UopSequence]]] = []
    end = count = 0
    for begin, sequence in places:
        if groups and begin == end and count + sequence.count < 1 << isa.SIZE_WIDTH:
            groups[-1][1].append(sequence)
        else:
            groups.append((begin, [sequence]))
            count = 0
        end, count = begin + sequence.count, count + sequence.count
    return [(begin, store.together(group)) for begin, group in groups]
