"""Micro-op kernels in device memory, and a cache of them in the micro-op buffer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
    """The sequences that the micro-op buffer of ``depth`` elements holds.

    A new sequence goes where the most recent use of what it overwrites is longest ago. Overwriting
    is safe while instructions that use the old contents are in flight: compute both loads micro-ops
    and uses them, and executes its instructions in order.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._resident: list[UopSequence] = []  # by `begin`
        self._clock = 0

    def place(self, sequence: UopSequence) -> tuple[int, bool]:
        """Where the sequence starts in the micro-op buffer, and whether it must be loaded there."""
        self._clock += 1
        sequence.last_use = self._clock
        if sequence.begin is not None:
            return sequence.begin, False
        filled = sum(item.count for item in self._resident)
        if filled + sequence.count <= self._depth and filled == self._end():
            # Behind all others, between which there are no gaps.
            sequence.begin = filled
            self._resident.append(sequence)
            return filled, True
        begin = self._best_place(sequence.count)
        end = begin + sequence.count
        kept = []
        for item in self._resident:
            assert item.begin is not None
            if item.begin < end and begin < item.begin + item.count:
                item.begin = None
            else:
                kept.append(item)
        sequence.begin = begin
        self._resident = sorted([*kept, sequence], key=_begin)
        return begin, True

    def place_all(self, sequences: Iterable[UopSequence]) -> list[tuple[UopSequence, int, int]]:
        """The loads that bring ``sequences`` into the micro-op buffer, which has room for all.

        Each load is given by its first sequence, where that starts in the micro-op buffer, and the
        number of micro-ops: sequences that are adjacent in both memories are loaded at once.
        """
        placed = ((sequence, *self.place(sequence)) for sequence in sequences)
        return merged((begin, sequence) for sequence, begin, missing in placed if missing)

    def resident(self) -> list[tuple[int, UopSequence]]:
        """The sequences in the micro-op buffer, and where each starts."""
        return [(_begin(item), item) for item in self._resident]

    @property
    def clock(self) -> int:
        """The number of uses so far, with which `last_use` is stamped."""
        return self._clock

    def clear(self) -> None:
        """Forgets everything, for when others have used the machine."""
        for item in self._resident:
            item.begin = None
        self._resident = []

    def _end(self) -> int:
        """The end of the last sequence in the micro-op buffer."""
        return _begin(self._resident[-1]) + self._resident[-1].count if self._resident else 0

    def _best_place(self, count: int) -> int:
        """The start of the ``count`` consecutive elements whose last use is longest ago; the lowest
        of several."""
        spans = [
            (_begin(item), _begin(item) + item.count, item.last_use) for item in self._resident
        ]
        best, best_use = 0, self._clock + 1
        for first, start in enumerate([0, *(end for _, end, _ in spans)]):
            if start + count > self._depth:
                break
            use = 0
            for begin, _, last_use in spans[first:]:
                if begin >= start + count or use >= best_use:
                    break
                use = max(use, last_use)
            if use < best_use:
                best, best_use = start, use
        return best


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


def _begin(sequence: UopSequence) -> int:
    assert sequence.begin is not None
    return sequence.begin
