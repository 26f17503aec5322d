"""Micro-op kernels in device memory, and a cache of them in the micro-op buffer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa

from .memory import Buffer, DeviceMemory

_UOP_BYTES = isa.UOP_WIDTH // 8
# Micro-ops per buffer of device memory that is allocated for them.
_CHUNK = 1 << 14


@dataclass(eq=False)
class UopSequence:
    """Micro-ops that are used together.

    In device memory they are ``count`` elements from ``offset`` on in ``buffer``. In the micro-op
    buffer they start at ``begin``, None if they are not loaded.
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
    """Micro-op sequences in device memory, without duplicates, contiguous in a few buffers."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._sequences: dict[bytes, UopSequence] = {}
        self.buffers: list[Buffer] = []
        self._room = 0

    def used_bytes(self) -> dict[Buffer, int]:
        """By buffer, the bytes that hold micro-ops."""
        used = {buffer: buffer.size for buffer in self.buffers}
        if self.buffers:
            used[self.buffers[-1]] -= self._room * _UOP_BYTES
        return used

    def intern(self, uops: npt.NDArray[np.uint32]) -> UopSequence:
        """The sequence with these contents, written to device memory if it is new.

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


class UopCache:
    """Sequences cached in the micro-op buffer of ``depth`` elements.

    A new sequence overwrites the least recently used ones. Overwriting is safe while instructions
    that use the old contents are in flight: compute both loads and uses micro-ops, in order.
    """

    def __init__(self, depth: int) -> None:
        # By element of the buffer, the last use of the sequence there; 0 where it is free.
        self._last_use = np.zeros(depth, np.int64)
        self._resident: list[tuple[int, UopSequence]] = []  # by `begin`, which is the first item
        self._clock = 0
        # The sequences that were resident at the last `take_kept`, and have been used since.
        self._kept: list[tuple[int, UopSequence]] = []
        self._taken = 0

    def place(self, sequence: UopSequence) -> tuple[int, bool]:
        """Where the sequence starts in the micro-op buffer, and whether it must be loaded there."""
        begin = sequence.begin
        missing = begin is None
        if begin is None:
            begin = sequence.begin = self._best_place(sequence.count)
            self._overwrite(begin, sequence)
        elif sequence.last_use <= self._taken:
            self._kept.append((begin, sequence))
        self._clock += 1
        sequence.last_use = self._clock
        self._last_use[begin : begin + sequence.count] = self._clock
        return begin, missing

    def place_all(self, sequences: Iterable[UopSequence]) -> list[tuple[UopSequence, int, int]]:
        """The loads that bring ``sequences`` into the micro-op buffer, which has room for all.

        Each load is given by its first sequence, where that starts in the micro-op buffer, and the
        number of micro-ops: sequences that are adjacent in both memories are loaded at once.
        """
        placed = ((sequence, *self.place(sequence)) for sequence in sequences)
        return merged((begin, sequence) for sequence, begin, missing in placed if missing)

    def resident(self) -> list[tuple[int, UopSequence]]:
        """The sequences in the micro-op buffer, and where each starts."""
        return self._resident.copy()

    def take_kept(self) -> list[tuple[int, UopSequence]]:
        """The sequences that were resident at the last call and have been used there since, and
        where each started, in this order."""
        kept, self._kept, self._taken = self._kept, [], self._clock
        return sorted(kept, key=itemgetter(0))

    def clear(self) -> None:
        """Forgets everything, for when others have used the machine."""
        for _, item in self._resident:
            item.begin = None
        self._resident = []
        self._last_use[:] = 0

    def _best_place(self, count: int) -> int:
        """The start of the ``count`` consecutive elements whose last use is longest ago; the lowest
        of several, which starts in no resident sequence: it would start there one element
        earlier."""
        latest, width = self._last_use, 1  # by element, the last use from it on
        while width < count:
            step = min(width, count - width)
            latest = np.maximum(latest[:-step], latest[step:])
            width += step
        return int(latest.argmin())

    def _overwrite(self, begin: int, sequence: UopSequence) -> None:
        """Replaces what overlaps ``sequence`` at ``begin``."""
        first = bisect_left(self._resident, (begin,))
        end = bisect_left(self._resident, (begin + sequence.count,))
        for start, item in self._resident[first:end]:
            self._last_use[start : start + item.count] = 0
            item.begin = None
        self._resident[first:end] = [(begin, sequence)]


def merged(
    places: Iterable[tuple[int, UopSequence]],
) -> list[tuple[UopSequence, int, int]]:
    """The loads of sequences to these places in the micro-op buffer, as `UopCache.place_all` gives
    them."""
    loads: list[tuple[UopSequence, int, int]] = []
    for begin, sequence in places:
        if loads:
            first, start, count = loads[-1]
            if (
                sequence.buffer is first.buffer
                and sequence.offset == first.offset + count
                and begin == start + count
                and count + sequence.count < 1 << isa.SIZE_WIDTH
            ):
                loads[-1] = (first, start, count + sequence.count)
                continue
        loads.append((sequence, begin, sequence.count))
    return loads
