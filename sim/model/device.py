"""The functional model as a device.

`machine`, on NumPy arrays, defines the behaviour; where there is a C++ compiler, programs run on a
compiled model with identical results (`amaranth_vta.sim.model.native`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from amaranth_vta.hw.config import Config
from amaranth_vta.sim.memory import MemoryBacked
from amaranth_vta.sw.runtime.counters import completed
from amaranth_vta.sw.runtime.device import Limits, RunResult

from .machine import ClearModel
from .native.build import Progress
from .native.model import NativeModel, library_or_reason
from .observers.false_claims import FalseClaim, FalseClaims
from .observers.observer import Observer
from .observers.races import Race, Races
from .observers.uninitialized_reads import UninitializedRead, UninitializedReads


class FunctionalDevice(MemoryBacked):
    """A `Device` without a clock.

    ``order`` is ``program``, ``reverse``, ``random:SEED`` or ``last:MODULE``; `ValueError`
    otherwise. After each run, if requested by a flag ``report_…``, `uninitialized_reads` lists
    reads of scratchpad elements never written since the device was created, `races` accesses that
    no token orders, and `false_claims` instructions that are wrongly marked independent.

    Orders other than ``program``, all reports, and ``clear`` require the clear model, on NumPy.
    Otherwise programs run on the compiled model if it can be built; if not, the log says why.
    ``progress`` is called with each step of a build. The device uses the memory of another one if
    ``memory`` is given.
    """

    name = "functional"

    def __init__(
        self,
        config: Config,
        memory_bytes: int,
        order: str = "program",
        report_uninitialized: bool = False,
        report_races: bool = False,
        report_false_claims: bool = False,
        clear: bool = False,
        progress: Progress | None = None,
        origin: int = 0,
        memory: MemoryBacked | None = None,
    ) -> None:
        super().__init__(memory_bytes, origin, memory)
        self.config = config
        self._uninitialized_reads = UninitializedReads(config)
        self._races = Races(config, self.memory_bytes)
        self._false_claims = FalseClaims(config)
        observers: list[Observer] = []
        if report_uninitialized:
            observers.append(self._uninitialized_reads)
        if report_races:
            observers.append(self._races)
        if report_false_claims:
            observers.append(self._false_claims)
        self.model: NativeModel | ClearModel
        can_be_native = order == "program" and not observers and not clear
        if can_be_native and not isinstance(library_or_reason(progress), str):
            self.model = NativeModel(config, self.memory, origin=self.origin)
        else:
            self.model = ClearModel(config, self.memory, order, observers, self.origin)

    @property
    def uninitialized_reads(self) -> list[UninitializedRead]:
        """Uninitialized reads of the latest run; empty without ``report_uninitialized``."""
        return self._uninitialized_reads.found

    @property
    def races(self) -> list[Race]:
        """Races of the latest run; empty without ``report_races``."""
        return self._races.found

    @property
    def false_claims(self) -> list[FalseClaim]:
        """False claims of the latest run; empty without ``report_false_claims``."""
        return self._false_claims.found

    def set_limits(self, limits: Limits) -> None:
        """As `Device.set_limits`."""
        self.model.set_limits(limits)

    def run(
        self,
        insn_addr: int,
        insn_count: int,
        time_limit: float | None = None,
        watched: Sequence[int] = (),
    ) -> RunResult:
        """Run ``insn_count`` instructions from byte ``insn_addr``; without a clock, ``watched`` has
        no effect.

        Raises `ValueError` if one of the two is negative. ``time_limit`` is in seconds.
        """
        if insn_addr < 0 or insn_count < 0:
            raise ValueError(
                f"a stream of {insn_count} instructions at {insn_addr:#x}: neither can be negative"
            )
        started = time.monotonic()
        outcome = self.model.run(insn_addr, insn_count, time_limit)
        return RunResult(
            cycles=None,
            fault=outcome.fault,
            tokens_left=outcome.tokens_left,
            counters=completed(self.config, outcome.counters),
            seconds=time.monotonic() - started,
        )
