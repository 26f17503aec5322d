"""What can be found out about a program while the functional model runs it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

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

    def start(self, index: int, instruction: isa.Instruction, pops: Sequence[TokenQueue]) -> None:
        """Instruction ``index`` has taken its tokens."""

    def read(self, index: int, memory: str, elements: Elements) -> None: ...

    def write(self, index: int, memory: str, elements: Elements) -> None: ...

    def keep(self, index: int, elements: Elements) -> None:
        """Instruction ``index`` may keep what it read of these accumulators until it ends."""

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
        self._config = config
        self._memory_bytes = memory_bytes
        self.begin()

    def begin(self) -> None:
        self.found = []
        self._clocks = Clocks()
        self._accesses = Accesses(self._config, self._memory_bytes)
        self._module = isa.Module.FETCH

    def start(self, index: int, instruction: isa.Instruction, pops: Sequence[TokenQueue]) -> None:
        self._module = isa.module_of(instruction)
        for queue in pops:
            self._clocks.take(queue)

    def finish(self, index: int, module: isa.Module, pushes: Sequence[TokenQueue]) -> None:
        self._clocks.advance(module, index)
        for queue in pushes:
            self._clocks.give(queue)

    def read(self, index: int, memory: str, elements: Elements) -> None:
        self._see(index, memory, elements, writes=False)

    def write(self, index: int, memory: str, elements: Elements) -> None:
        self._see(index, memory, elements, writes=True)

    def _see(self, index: int, memory: str, elements: Elements, writes: bool) -> None:
        known = self._clocks.known[self._module]
        for other, last in self._accesses.met(self._module, memory, elements, writes):
            unordered = last > known[other]
            if unordered.any():
                at = int(np.where(unordered, elements, elements.max() + 1).argmin())
                first, second = sorted((int(last[at]), index))
                self.found.append(Race(first, second, memory, int(elements[at])))
        self._accesses.note(index, self._module, memory, elements, writes)


class Clocks:
    """What each module knows by its tokens of how far the others are.

    ``known[a][b]`` is the last instruction of module ``b`` that is complete whenever ``a`` starts
    its next one; -1 for none. ``tokens`` are those under way, oldest first, each with what its
    giver knew.
    """

    def __init__(self) -> None:
        self.known = {module: dict.fromkeys(isa.Module, -1) for module in isa.Module}
        self.tokens: dict[TokenQueue, deque[dict[isa.Module, int]]] = {
            (giver, taker): deque()
            for giver in (isa.Module.LOAD, isa.Module.COMPUTE, isa.Module.STORE)
            for taker in (isa.Module.LOAD, isa.Module.COMPUTE, isa.Module.STORE)
            if abs(giver - taker) == 1
        }

    def advance(self, module: isa.Module, index: int) -> None:
        """``module`` has completed instruction ``index``."""
        self.known[module][module] = index

    def give(self, queue: TokenQueue) -> None:
        self.tokens[queue].append(dict(self.known[queue[0]]))

    def take(self, queue: TokenQueue) -> None:
        known = self.known[queue[1]]
        for other, last in self.tokens[queue].popleft().items():
            known[other] = max(known[other], last)


class Accesses:
    """The last instruction of each module that read, and that wrote, each element."""

    def __init__(self, config: Config, memory_bytes: int) -> None:
        self._sizes = {
            memory.name: memory.depth for memory in (config.uop, config.inp, config.wgt, config.acc)
        }
        self._sizes["DRAM"] = memory_bytes
        self._last: dict[tuple[str, isa.Module, bool], Elements] = {}

    def met(
        self, module: isa.Module, memory: str, elements: Elements, writes: bool
    ) -> Iterator[tuple[isa.Module, Elements]]:
        """For each other module, its last access to each of ``elements`` that an access of
        ``module`` to them must be ordered with; -1 where there is none."""
        for (where, other, other_writes), last in self._last.items():
            if where == memory and other is not module and (writes or other_writes):
                yield other, last[elements]

    def note(
        self, index: int, module: isa.Module, memory: str, elements: Elements, writes: bool
    ) -> None:
        key = (memory, module, writes)
        if key not in self._last:
            self._last[key] = np.full(self._sizes[memory], -1)
        self._last[key][elements] = index


@dataclass(frozen=True)
class FalseClaim:
    """Instruction ``second`` says that it is independent of what GEMM, or ALU, may still be at with
    instruction ``first``, and both touch ACC[``element``], which one of them writes.

    Or, if they are one: a REQUANTIZE that writes one of its own parameters.
    """

    first: int
    second: int
    element: int

    def __str__(self) -> str:
        if self.first == self.second:
            return (
                f"instruction {self.first} requantizes ACC[{self.element}], one of its own "
                "parameters"
            )
        return (
            f"instruction {self.second} claims to be independent, but may overtake instruction "
            f"{self.first}, with which it shares ACC[{self.element}]"
        )


class FalseClaims(Observer):
    """Collects the false claims of a run in ``found``.

    A run without any proves that a machine which executes independent instructions beside others
    gives the same result as one that executes all one after the other.
    """

    def __init__(self, config: Config) -> None:
        self.found: list[FalseClaim] = []
        self._claims = Claims(config)
        self.begin()

    def begin(self) -> None:
        self.found = []
        self._claims.wait()
        self._unit: Unit | None = None
        # Of the instruction under way.
        self._kept: list[Elements] = []
        self._written: list[Elements] = []
        self._seen: set[FalseClaim] = set()

    def start(self, index: int, instruction: isa.Instruction, pops: Sequence[TokenQueue]) -> None:
        self._unit = unit_of(instruction)
        self._kept, self._written = [], []
        self._claims.start(instruction)

    def read(self, index: int, memory: str, elements: Elements) -> None:
        self._see(index, memory, elements, writes=False)

    def write(self, index: int, memory: str, elements: Elements) -> None:
        self._see(index, memory, elements, writes=True)
        if memory == "ACC":
            self._written.append(elements)
            self._compare(index, self._kept, elements)

    def keep(self, index: int, elements: Elements) -> None:
        self._kept.append(elements)
        self._compare(index, self._written, elements)

    def _compare(self, index: int, earlier: list[Elements], elements: Elements) -> None:
        """Finds what one instruction both keeps and writes."""
        for others in earlier:
            own = np.intersect1d(others, elements)
            if own.size:
                self._find(FalseClaim(index, index, int(own[0])))

    def _see(self, index: int, memory: str, elements: Elements, writes: bool) -> None:
        # Loads and stores are ordered by tokens, which are not given before an instruction is done.
        if memory != "ACC" or self._unit is None:
            return
        last = self._claims.met(self._unit, elements, writes)
        if (last >= 0).any():
            at = int(np.where(last >= 0, elements, elements.max() + 1).argmin())
            self._find(FalseClaim(int(last[at]), index, int(elements[at])))
        self._claims.note(index, self._unit, elements, writes)

    def _find(self, claim: FalseClaim) -> None:
        if claim not in self._seen:
            self._seen.add(claim)
            self.found.append(claim)


class Unit(Enum):
    """The units of compute, each of which keeps the order of its own instructions."""

    GEMM = "gemm"
    ALU = "alu"


def unit_of(instruction: isa.Instruction) -> Unit | None:
    """The unit that executes ``instruction``; None if the whole of compute does, as it does LOAD
    and FINISH, which wait for everything."""
    match instruction:
        case isa.Gemm():
            return Unit.GEMM
        case isa.Alu():
            return Unit.ALU
    return None


class Claims:
    """For each unit of compute, the last instruction that read, and that wrote, each accumulator
    and may still be under way; -1 where there is none."""

    def __init__(self, config: Config) -> None:
        self._last = {
            (unit, writes): np.full(config.acc.depth, -1)
            for unit in Unit
            for writes in (False, True)
        }

    def wait(self) -> None:
        """Nothing is under way any more."""
        for last in self._last.values():
            last[:] = -1

    def start(self, instruction: isa.Instruction) -> None:
        """Forgets what has ended by the time that ``instruction`` starts."""
        if isa.module_of(instruction) is not isa.Module.COMPUTE:
            return
        unit = unit_of(instruction)
        if unit is None:
            self.wait()
        elif not getattr(instruction, "independent", 0):
            for (other, _), last in self._last.items():
                if other is not unit:
                    last[:] = -1

    def met(self, unit: Unit, elements: Elements, writes: bool) -> Elements:
        """The last instruction of the other unit, for each of ``elements``, that an access of
        ``unit`` to it must be ordered with."""
        last = np.full(elements.shape, -1)
        for (other, other_writes), instructions in self._last.items():
            if other is not unit and (writes or other_writes):
                last = np.maximum(last, instructions[elements])
        return last

    def note(self, index: int, unit: Unit, elements: Elements, writes: bool) -> None:
        self._last[unit, writes][elements] = index
