"""Memory of simulated devices, with access for the host."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.isa import INSTRUCTION_BYTES

# Memory sizes are rounded up to a multiple of the widest bus word, in bytes.
_UNIT = 64


class MemoryBacked:
    """A device's ``memory``: ``memory_bytes``, rounded up to whole bus words, initially zero.

    ``origin``, a multiple of 64, is the address of its first byte; accesses to other addresses are
    bus errors. With ``shared`` the device uses the memory of another one.
    """

    origin: int
    memory_bytes: int
    memory: npt.NDArray[np.uint8]

    def __init__(
        self, memory_bytes: int, origin: int = 0, shared: MemoryBacked | None = None
    ) -> None:
        if shared is not None:
            self.origin, self.memory_bytes = shared.origin, shared.memory_bytes
            self.memory = shared.memory
            return
        if origin < 0 or origin % _UNIT:
            raise ValueError(f"origin = {origin:#x} is not a multiple of {_UNIT}")
        self.origin = origin
        self.memory_bytes = -(-memory_bytes // _UNIT) * _UNIT
        self.memory = np.zeros(self.memory_bytes, np.uint8)

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """A copy of ``size`` bytes; raises `ValueError` beyond the memory."""
        self._check_bounds(address, size)
        first = address - self.origin
        return self.memory[first : first + size].copy()

    def write(self, address: int, data: npt.NDArray[np.generic] | bytes) -> None:
        """Stores the bytes of ``data``; raises `ValueError` beyond the memory."""
        raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
        self._check_bounds(address, len(raw))
        first = address - self.origin
        self.memory[first : first + len(raw)] = np.frombuffer(raw, np.uint8)

    def instruction_words(self, address: int, count: int) -> list[int]:
        """``count`` instructions of 128 bits from byte ``address``; zeros beyond the memory."""
        return instruction_words(self.memory, address - self.origin, count)

    def _check_bounds(self, address: int, size: int) -> None:
        end = self.origin + self.memory_bytes
        if address < self.origin or size < 0 or address + size > end:
            begins = f", which begins at {self.origin:#x}" if self.origin else ""
            raise ValueError(
                f"{size} bytes at {address:#x} are not within the device's "
                f"{self.memory_bytes:#x} bytes of memory{begins}"
            )


def instruction_words(memory: npt.NDArray[np.uint8], address: int, count: int) -> list[int]:
    """``count`` instructions of 128 bits from byte ``address``; zeros beyond the memory."""
    size = INSTRUCTION_BYTES
    raw = memory[address : address + count * size].tobytes()
    return [int.from_bytes(raw[at : at + size], "little") for at in range(0, count * size, size)]
