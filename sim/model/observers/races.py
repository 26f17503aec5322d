"""Races: conflicting accesses of different modules to an element without a token that orders them,
and STOREs over the running stream that no token orders with fetch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config

from .observer import Elements, Observer


@dataclass(frozen=True)
class Race:
    """Instructions of two modules that no token orders, although both access an element and at
    least one of them writes it. ``element`` is the first such element.

    If ``over_stream``: ``second`` is a STORE over instruction ``first`` of its own stream, which
    fetch may read at any time.
    """

    first: int
    second: int
    memory: str
    element: int
    over_stream: bool = False

    def __str__(self) -> str:
        if self.over_stream:
            return (
                f"instruction {self.second} stores over instruction {self.first} of its own "
                f"stream, at {self.memory}[{self.element}]"
            )
        return (
            f"no token orders instructions {self.first} and {self.second}, which meet at "
            f"{self.memory}[{self.element}]"
        )


class Races(Observer):
    """Collects the races of a run in ``found``.

    If there are none, the result is the same in every order, since tokens order all conflicting
    accesses. (The order enforced by full queues does not count.)
    """

    def __init__(self, config: Config, memory_bytes: int) -> None:
        self.found: list[Race] = []
        self._config = config
        self._memory_bytes = memory_bytes
        self.begin()

    def begin(self) -> None:
        self.found = []
        self._clocks = VectorClocks()
        self._accesses = Accesses(self._config, self._memory_bytes)
        self._module = isa.Module.FETCH
        self._stream = range(0)

    def fetch(self, instructions: range) -> None:
        self._stream = instructions

    def start(
        self, index: int, instruction: isa.Instruction, pops: Sequence[isa.TokenQueue]
    ) -> None:
        self._module = isa.module_of(instruction)
        for queue in pops:
            self._clocks.pop(queue)

    def finish(self, index: int, module: isa.Module, pushes: Sequence[isa.TokenQueue]) -> None:
        self._clocks.advance(module, index)
        for queue in pushes:
            self._clocks.push(queue)

    def read(self, index: int, memory: str, elements: Elements) -> None:
        self._see(index, memory, elements, writes=False)

    def write(self, index: int, memory: str, elements: Elements) -> None:
        self._see(index, memory, elements, writes=True)
        if memory == "DRAM":
            stream = self._stream
            inside = elements[(elements >= stream.start) & (elements < stream.stop)]
            if inside.size:
                at = int(inside.min())
                first = (at - stream.start) // isa.INSTRUCTION_BYTES
                self.found.append(Race(first, index, memory, at, over_stream=True))

    def _see(self, index: int, memory: str, elements: Elements, writes: bool) -> None:
        retired = self._clocks.retired[self._module]
        for other, last in self._accesses.conflicts(self._module, memory, elements, writes):
            unordered = last > retired[other]
            if unordered.any():
                at = int(np.where(unordered, elements, elements.max() + 1).argmin())
                first, second = sorted((int(last[at]), index))
                self.found.append(Race(first, second, memory, int(elements[at])))
        self._accesses.record(index, self._module, memory, elements, writes)


class VectorClocks:
    """A vector clock per module and per token.

    ``retired[a][b]`` is the last instruction of module ``b`` that has retired whenever module ``a``
    starts its next one; -1 for none. ``tokens`` holds, per queue and oldest first, the clock of the
    producer when it pushed each token.
    """

    def __init__(self) -> None:
        self.retired = {module: dict.fromkeys(isa.Module, -1) for module in isa.Module}
        self.tokens: dict[isa.TokenQueue, deque[dict[isa.Module, int]]] = {
            queue: deque() for queue in isa.TOKEN_QUEUES
        }

    def advance(self, module: isa.Module, index: int) -> None:
        """``module`` has retired instruction ``index``."""
        self.retired[module][module] = index

    def push(self, queue: isa.TokenQueue) -> None:
        self.tokens[queue].append(dict(self.retired[queue[0]]))

    def pop(self, queue: isa.TokenQueue) -> None:
        retired = self.retired[queue[1]]
        for other, last in self.tokens[queue].popleft().items():
            retired[other] = max(retired[other], last)


class Accesses:
    """Per element, the last instruction of each module that read it, and the last that wrote it."""

    def __init__(self, config: Config, memory_bytes: int) -> None:
        self._sizes = {
            memory.name: memory.depth for memory in (config.uop, config.inp, config.wgt, config.acc)
        }
        self._sizes["DRAM"] = memory_bytes
        # Indices are stored plus 1, so that zero pages of unaccessed memory are never allocated.
        self._last: dict[tuple[str, isa.Module, bool], npt.NDArray[np.int32]] = {}

    def conflicts(
        self, module: isa.Module, memory: str, elements: Elements, writes: bool
    ) -> Iterator[tuple[isa.Module, npt.NDArray[np.int32]]]:
        """For each other module, its last instruction that conflicts with an access of ``module``,
        per element of ``elements``; -1 for none.
        """
        for (where, other, other_writes), last in self._last.items():
            if where == memory and other is not module and (writes or other_writes):
                yield other, last[elements] - 1

    def record(
        self, index: int, module: isa.Module, memory: str, elements: Elements, writes: bool
    ) -> None:
        key = (memory, module, writes)
        if key not in self._last:
            self._last[key] = np.zeros(self._sizes[memory], np.int32)
        self._last[key][elements] = index + 1
