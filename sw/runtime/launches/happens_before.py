"""Happens-before through tokens: which instructions each module knows to have retired."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.isa import TOKEN_QUEUES, Module, TokenQueue
from amaranth_vta.sw.runtime.instruction_words import Words
from amaranth_vta.sw.runtime.stream import POP, PUSH

# Per module, the last of its instructions that has retired; -1 if none has.
VectorClock = tuple[int, int, int]


class PushedToken(NamedTuple):
    """A token pushed by the instruction ``producer``, and the clock of its module at that point."""

    producer: int
    clock: VectorClock


class StreamClocks:
    """Vector clocks of the modules during instructions that are ordered only by their own tokens.
    Computed from the tokens on demand, whereas `Joiner` updates clocks instruction by instruction.

    ``words`` are the instructions, numbered from ``first``, and ``modules`` execute them.
    ``clocks`` are the clocks before them, and ``queues`` hold tokens, all of which they pop.
    """

    def __init__(
        self,
        words: Words,
        modules: npt.NDArray[np.int64],
        first: int,
        clocks: Sequence[VectorClock],
        queues: Mapping[TokenQueue, Sequence[PushedToken]],
    ) -> None:
        self._before = clocks
        self._waiting = {queue: tuple(tokens) for queue, tokens in queues.items()}
        self._pops, self._pushes = (
            {
                queue: self._flagged(words, modules == queue[end], flags[queue], first)
                for queue in TOKEN_QUEUES
            }
            for end, flags in ((1, POP), (0, PUSH))
        )
        self._numbers = [first + np.flatnonzero(modules == module) for module in range(3)]

    @staticmethod
    def _flagged(words: Words, chosen: npt.NDArray[np.bool_], flag: int, first: int) -> list[int]:
        """Numbers of the ``chosen`` instructions that have the ``flag``."""
        flagged = words[:, 0] & np.uint64(flag) != 0
        numbers: list[int] = (first + np.flatnonzero(flagged & chosen)).tolist()
        return numbers

    def numbers(self, module: Module) -> list[int]:
        """Numbers of a module's instructions."""
        result: list[int] = self._numbers[module].tolist()
        return result

    def after(self, module: Module, number: int) -> VectorClock:
        """The clock of ``module`` after its instruction ``number``."""
        load, compute, store = (
            number if other is module else self._latest_retired(module, other, number)
            for other in (Module.LOAD, Module.COMPUTE, Module.STORE)
        )
        return load, compute, store

    def at_end(self, module: Module) -> VectorClock:
        """The clock of ``module`` after all instructions."""
        own = self._numbers[module]
        return self.after(module, int(own[-1])) if own.size else self._before[module]

    def known_stores(self) -> Iterator[tuple[int, int]]:
        """Compute instructions that pop tokens of STOREs, each with the last STORE known to have
        retired.
        """
        queue = (Module.STORE, Module.COMPUTE)
        for number in self._pops[queue]:
            yield number, self._latest_retired(Module.COMPUTE, Module.STORE, number)

    def _latest_retired(self, module: Module, other: Module, number: int) -> int:
        """The last instruction of ``other`` that has retired, as ``module`` knows at ``number``."""
        before = self._before[module][other]
        direct = Module.COMPUTE in (module, other)
        queue = (other if direct else Module.COMPUTE, module)
        popped = bisect_right(self._pops[queue], number)
        if not popped:
            return before
        waiting = self._waiting[queue]
        if popped <= len(waiting):
            return max(before, waiting[popped - 1].clock[other])
        producer = self._pushes[queue][popped - 1 - len(waiting)]
        # Load and store learn of each other only through compute.
        return max(
            before, producer if direct else self._latest_retired(Module.COMPUTE, other, producer)
        )
