"""The observer interface of the functional model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa

Elements = npt.NDArray[np.int64]


class Observer:
    """Base of all observers: sees each step of a run; its own callbacks do nothing.

    Memories are ``UOP``, ``INP``, ``WGT``, ``ACC``, counted in elements, and ``DRAM``, in bytes.
    Elements may repeat. Of one instruction, reads are shown before the writes that they precede.
    """

    def begin(self) -> None:
        """A run begins."""

    def fetch(self, instructions: range) -> None:
        """The stream of the run lies in these bytes of DRAM, and is read while it runs."""

    def start(
        self, index: int, instruction: isa.Instruction, pops: Sequence[isa.TokenQueue]
    ) -> None:
        """Instruction ``index`` has taken its tokens."""

    def read(self, index: int, memory: str, elements: Elements) -> None:
        """Instruction ``index`` reads ``elements``."""

    def write(self, index: int, memory: str, elements: Elements) -> None:
        """Instruction ``index`` writes ``elements``."""

    def keep(self, index: int, elements: Elements) -> None:
        """Instruction ``index`` may keep its reads of these accumulators until it ends."""

    def finish(self, index: int, module: isa.Module, pushes: Sequence[isa.TokenQueue]) -> None:
        """Instruction ``index`` has given its tokens."""
