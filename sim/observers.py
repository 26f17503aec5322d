"""What can be found out about a program while the functional model runs it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config

Elements = npt.NDArray[np.int64]
# From which module to which.
TokenQueue = tuple[isa.Module, isa.Module]


class Observer:
    """Sees each step of a run; here it makes nothing of it.

    Memories are ``UOP``, ``INP``, ``WGT``, ``ACC``, counted in elements, and ``DRAM``, in bytes.
    Elements may repeat. Of one instruction, reads are shown before the writes that they precede.
    """

    def begin(self) -> None:
        """A run begins."""

    def start(self, index: int, module: isa.Module, pops: Sequence[TokenQueue]) -> None:
        """Instruction ``index`` has taken its tokens."""

    def read(self, index: int, memory: str, elements: Elements) -> None: ...

    def write(self, index: int, memory: str, elements: Elements) -> None: ...

    def finish(self, index: int, module: isa.Module, pushes: Sequence[TokenQueue]) -> None:
        """Instruction ``index`` has given its tokens."""


@dataclass(frozen=True)
class UninitializedRead:
    """A read of a scratchpad element that nothing was ever written to."""

    instruction: int
    memory: str
    element: int

    def __str__(self) -> str:
        return f"instruction {self.instruction} reads {self.memory}[{self.element}], never written"


class UninitializedReads(Observer):
    """Collects the reads of a run that found an element unwritten, in ``found``.

    What earlier runs wrote counts as written.
    """

    def __init__(self, config: Config) -> None:
        self.found: list[UninitializedRead] = []
        self._written = {
            memory.name: np.zeros(memory.depth, np.bool_)
            for memory in (config.uop, config.inp, config.wgt, config.acc)
        }
        self._seen: set[UninitializedRead] = set()

    def begin(self) -> None:
        self.found = []
        self._seen = set()

    def read(self, index: int, memory: str, elements: Elements) -> None:
        if memory not in self._written:
            return
        for element in np.unique(elements[~self._written[memory][elements]]):
            read = UninitializedRead(index, memory, int(element))
            if read not in self._seen:
                self._seen.add(read)
                self.found.append(read)

    def write(self, index: int, memory: str, elements: Elements) -> None:
        if memory in self._written:
            self._written[memory][elements] = True


@dataclass(frozen=True)
class Race:
    """Two instructions of different modules that no token orders, one of which writes what the
    other reads or writes too. ``element`` is the first of those elements."""

    first: int
    second: int
    memory: str
    element: int

    def __str__(self) -> str:
        return (
            f"no token orders instructions {self.first} and {self.second}, which meet at "
            f"{self.memory}[{self.element}]"
        )


class Races(Observer):
    """Collects the races of a run in ``found``.

    A run without any proves that every order gives the same result: whatever two modules share
    is then ordered by tokens. (The order that full queues happen to enforce does not count.)
    """

    def __init__(self, config: Config, memory_bytes: int) -> None:
        self.found: list[Race] = []
        self._sizes = {
            memory.name: memory.depth for memory in (config.uop, config.inp, config.wgt, config.acc)
        }
        self._sizes["DRAM"] = memory_bytes
        self.begin()

    def begin(self) -> None:
        self.found = []
        # Of each module, the last instruction of each that is known to precede its present one.
        self._clocks = {module: dict.fromkeys(isa.Module, -1) for module in isa.Module}
        self._tokens: dict[TokenQueue, deque[dict[isa.Module, int]]] = {}
        self._module = isa.Module.FETCH
        # The last instruction of each module that read, and that wrote, each element.
        self._last_reads: dict[tuple[str, isa.Module], npt.NDArray[np.int64]] = {}
        self._last_writes: dict[tuple[str, isa.Module], npt.NDArray[np.int64]] = {}

    def start(self, index: int, module: isa.Module, pops: Sequence[TokenQueue]) -> None:
        self._module = module
        clock = self._clocks[module]
        for queue in pops:
            for other, last in self._tokens[queue].popleft().items():
                clock[other] = max(clock[other], last)

    def finish(self, index: int, module: isa.Module, pushes: Sequence[TokenQueue]) -> None:
        self._clocks[module][module] = index
        for queue in pushes:
            self._tokens.setdefault(queue, deque()).append(dict(self._clocks[module]))

    def read(self, index: int, memory: str, elements: Elements) -> None:
        self._compare(index, memory, elements, self._last_writes)
        self._note(index, memory, elements, self._last_reads)

    def write(self, index: int, memory: str, elements: Elements) -> None:
        self._compare(index, memory, elements, self._last_writes)
        self._compare(index, memory, elements, self._last_reads)
        self._note(index, memory, elements, self._last_writes)

    def _compare(
        self,
        index: int,
        memory: str,
        elements: Elements,
        accesses: dict[tuple[str, isa.Module], npt.NDArray[np.int64]],
    ) -> None:
        for (where, module), last in accesses.items():
            if where == memory and module is not self._module:
                unordered = elements[last[elements] > self._clocks[self._module][module]]
                if unordered.size:
                    element = int(unordered.min())
                    first, second = sorted((int(last[element]), index))
                    self.found.append(Race(first, second, memory, element))

    def _note(
        self,
        index: int,
        memory: str,
        elements: Elements,
        accesses: dict[tuple[str, isa.Module], npt.NDArray[np.int64]],
    ) -> None:
        key = (memory, self._module)
        if key not in accesses:
            accesses[key] = np.full(self._sizes[memory], -1)
        accesses[key][elements] = index
