"""Allocates a device's memory."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from amaranth_vta.errors import VtaError
from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config

from .device import Device, Limits

_Scalar = TypeVar("_Scalar", bound=np.generic)


class OutOfMemory(VtaError, MemoryError):
    """A buffer does not fit; the message states the bytes requested and the bytes left."""


def buffer_alignment(config: Config) -> int:
    """Alignment, in bytes, at which any memory of the machine can load or store a buffer."""
    return max(isa.BASE_ALIGNMENT, *(config.memory(memory).element_bytes for memory in isa.Memory))


class DeviceMemory:
    """A first-fit allocator for all memory of ``device``; adjacent free blocks are merged."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.alignment = buffer_alignment(device.config)
        self._size = device.memory_bytes - device.memory_bytes % self.alignment
        # Free blocks (address, bytes), sorted by address; both are multiples of the alignment.
        self._free = [(0, self._size)] if self._size else []

    @property
    def bytes_left(self) -> int:
        """Total free bytes."""
        return sum(size for _, size in self._free)

    @property
    def limits(self) -> Limits:
        """Limits that prevent a program from accessing memory beyond the last buffer."""
        end = self._size
        if self._free and sum(self._free[-1]) == self._size:
            end = self._free[-1][0]
        config = self.device.config
        return {memory: end // config.memory(memory).element_bytes for memory in isa.LIMITED}

    def allocate(self, size: int, name: str = "buffer") -> Buffer:
        """Allocate ``size`` bytes, aligned to `buffer_alignment`; their contents are undefined.

        Raises `OutOfMemory`, or `ValueError` for a size below 1.
        """
        if size < 1:
            raise ValueError(f"{name}: a buffer of {size} bytes cannot be allocated")
        taken = -(-size // self.alignment) * self.alignment
        for position, (address, free) in enumerate(self._free):
            if free >= taken:
                rest = [(address + taken, free - taken)] if free > taken else []
                self._free[position : position + 1] = rest
                return Buffer(self, address, size, name)
        largest = max((free for _, free in self._free), default=0)
        raise OutOfMemory(
            f"{name} needs {size:,} bytes; of the {self.device.memory_bytes:,} bytes of device "
            f"memory {self.bytes_left:,} are left, {largest:,} of them in one piece"
        )

    def _release(self, address: int, size: int) -> None:
        start, end = address, address + -(-size // self.alignment) * self.alignment
        position = bisect_left(self._free, (start, 0))
        first, last = position, position
        if position and sum(self._free[position - 1]) == start:
            first -= 1
            start = self._free[first][0]
        if position < len(self._free) and self._free[position][0] == end:
            end = sum(self._free[position])
            last += 1
        self._free[first:last] = [(start, end - start)]


class Buffer:
    """``size`` bytes of device memory at the physical byte ``address``.

    Host accesses are bounds-checked. Offsets are in bytes.
    """

    __slots__ = ("_memory", "_whole", "address", "name", "size")

    def __init__(
        self,
        memory: DeviceMemory,
        address: int,
        size: int,
        name: str,
        whole: Buffer | None = None,
    ) -> None:
        self._memory: DeviceMemory | None = memory
        self.address = address
        self.size = size
        self.name = name
        # Not a reference to itself: an object in a reference cycle, and its device, live until
        # garbage collection.
        self._whole = whole

    def __repr__(self) -> str:
        state = "" if self._memory else ", freed"
        return f"<Buffer {self.name}: {self.size:,} bytes at {self.address:#x}{state}>"

    @property
    def whole(self) -> Buffer:
        """The buffer that this is a `part` of, or itself."""
        return self._whole or self

    @property
    def reached(self) -> Buffer:
        """The buffer whose bytes instructions may access that are relative to this one."""
        return self if self._whole is None else self._whole.reached

    def write(self, data: npt.NDArray[np.generic] | bytes, offset: int = 0) -> None:
        """Write the bytes of ``data`` (any dtype and shape, C order) at ``offset``.

        Raises `IndexError` if they exceed the buffer, `ValueError` if it has been freed.
        """
        flat = (
            np.frombuffer(data, np.uint8)
            if isinstance(data, bytes)
            else np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        )
        device = self._device()
        self._check("write", offset, flat.size)
        if flat.size:
            device.write(self.address + offset, flat)

    def read(
        self,
        dtype: type[_Scalar] | np.dtype[_Scalar],
        shape: int | tuple[int, ...],
        offset: int = 0,
    ) -> npt.NDArray[_Scalar]:
        """A new array with the contents at ``offset``. Raises the errors of `write`."""
        shape = (shape,) if isinstance(shape, int) else shape
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        device = self._device()
        self._check("read", offset, size)
        return device.read(self.address + offset, size).view(dtype).reshape(shape)

    def part(self, offset: int, size: int, name: str) -> Buffer:
        """A view of ``size`` bytes at ``offset``, valid until the whole buffer is freed. Only
        memories whose elements divide ``offset`` can load or store it. Raises the errors of
        `write`.
        """
        self._device()
        self._check("take", offset, size)
        assert self._memory is not None
        return Buffer(self._memory, self.address + offset, size, name, self.whole)

    def free(self) -> None:
        """Free the memory; raises `ValueError` if it is already free or the buffer is a part."""
        self._device()
        assert self._memory is not None
        if self.whole is not self:
            raise ValueError(f"{self.name} is a part of {self.whole.name}")
        self._memory._release(self.address, self.size)
        self._memory = None

    def belongs_to(self, memory: DeviceMemory) -> bool:
        """Whether the buffer is in ``memory`` and has not been freed."""
        return self._memory is memory

    def _device(self) -> Device:
        if self._memory is None:
            raise ValueError(f"{self.name} has been freed")
        return self._memory.device

    def _check(self, verb: str, offset: int, size: int) -> None:
        if offset < 0 or offset + size > self.size:
            raise IndexError(
                f"cannot {verb} bytes {offset:,} to {offset + size:,} of {self.name}, which has "
                f"{self.size:,}"
            )


@dataclass(frozen=True)
class Motion:
    """How a window moves with the place of a row: at place p it begins p // ``block`` * ``stride``
    + p % ``block`` * ``step`` bytes after place 0.
    """

    block: int
    stride: int
    step: int

    def offset(self, place: int) -> int:
        """Bytes from place 0 to ``place``."""
        return place // self.block * self.stride + place % self.block * self.step


class MovingWindow(Buffer):
    """The first ``size`` bytes of a buffer, ``within`` which they move by ``motion`` between runs.

    Instructions are relative to a window as to a buffer. While they are recorded it is at place 0.
    """

    __slots__ = ("motion", "within")

    def __init__(self, within: Buffer, size: int, name: str, motion: Motion) -> None:
        within._check("move", 0, size)
        assert within._memory is not None
        super().__init__(within._memory, within.address, size, name)
        self.within = within
        self.motion = motion

    @property
    def reached(self) -> Buffer:
        return self.within.whole

    def free(self) -> None:
        raise ValueError(f"{self.name} is a window of {self.within.name}")
