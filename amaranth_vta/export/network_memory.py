"""The memory that a network shares with the machine: `NetworkMemory`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amaranth_vta.sw.runtime.network.network_program import NetworkProgram

Bytes = npt.NDArray[np.uint8]
_ALIGNMENT = 64
# Runs of more zeros than this are omitted: `vta_load` clears the memory.
_ZEROS = 256
_UNIT = 4


@dataclass(frozen=True)
class Variable:
    """The place of a variable, and its initial bytes."""

    offset: int
    initial: Bytes


class NetworkMemory:
    """The program, placed at the beginning, with the variables that the machine keeps, then the
    variables that the host keeps.

    ``placed`` has the addresses of streams and buffers, ``variables`` has all variables by name.
    ``size`` is in bytes.
    """

    def __init__(self, network: NetworkProgram) -> None:
        self._image, self.placed = network.program.placed_at_zero(network.launched("network"))
        self.variables: dict[str, Variable] = {}
        self.size = self._image.size
        for state in network.states:
            initial = np.frombuffer(state.initial.tobytes(), np.uint8)
            self.variables[state.source] = Variable(self.size, initial)
            self.size += -(-initial.size // _ALIGNMENT) * _ALIGNMENT
        for kept in network.kept:
            initial = network.program.contents[kept.buffer]
            address = self.placed.buffer(kept.buffer).address
            self.variables[kept.operand.tensor] = Variable(address, initial)

    def at(self, buffer: str) -> str:
        """The C expression of the address of a buffer."""
        return _at(self.placed.buffer(buffer).address)

    def at_variable(self, name: str) -> str:
        """The C expression of the address of a variable."""
        return _at(self.variables[name].offset)

    def segments(self) -> Iterator[tuple[int, Bytes]]:
        """The non-zero parts of the program, each with its address; both ends are multiples of
        `_UNIT`, so that exported C copies words.
        """
        (used,) = np.nonzero(self._image)
        if not used.size:
            return
        gaps = np.flatnonzero(np.diff(used) > _ZEROS)
        for first, last in zip((0, *(gaps + 1)), (*gaps, used.size - 1), strict=True):
            start = int(used[first]) // _UNIT * _UNIT
            yield start, self._image[start : -(-int(used[last] + 1) // _UNIT) * _UNIT]


def _at(offset: int) -> str:
    return f"port->memory + {offset}"
