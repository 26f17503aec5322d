"""The observer interface of the functional model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa

Elements = npt.NDArray[np.int64]


class Observer:
    """Base class of observers, which see each step of a run; its callbacks do nothing.

    Memories are ``UOP``, ``INP``, ``WGT``, ``ACC``, indexed by element, and ``DRAM``, by byte.
    Elements may repeat. An instruction's reads are reported before the writes that follow them.
    """

    def begin(self) -> None:
        """A run begins."""

    def fetch(self, instructions: range) -> None:
        """The stream occupies these bytes of DRAM, and is read during the run."""

    def start(
        self, index: int, instruction: isa.Instruction, pops: Sequence[isa.TokenQueue]
    ) -> None:
        """Instruction ``index`` has popped its tokens."""

    def read(self, index: int, memory: str, elements: Elements) -> None:
        """Instruction ``index`` reads ``elements``."""

    def write(self, index: int, memory: str, elements: Elements) -> None:
        """Instruction ``index`` writes ``elements``."""

    def keep(self, index: int, elements: Elements) -> None:
        """Instruction ``index`` may use its reads of these accumulators until it ends."""

    def finish(self, index: int, module: isa.Module, pushes: Sequence[isa.TokenQueue]) -> None:
        """Instruction ``index`` has pushed its tokens."""
