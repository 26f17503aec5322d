"""Reads of scratchpad elements that were never written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amaranth_vta.hw.config import Config

from .observer import Elements, Observer


@dataclass(frozen=True)
class UninitializedRead:
    """A read of a scratchpad element that was never written."""

    instruction: int
    memory: str
    element: int

    def __str__(self) -> str:
        return f"instruction {self.instruction} reads {self.memory}[{self.element}], never written"


class UninitializedReads(Observer):
    """Collects the reads of unwritten elements of a run in ``found``.

    Elements written in earlier runs count as written.
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
