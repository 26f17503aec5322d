"""Several machines on one memory without RTL: `FunctionalSystem` and `EstimateSystem`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.sim.estimate.library import SystemEngine
from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sim.machine.shared_memory import SystemBacked
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.runtime.counters import completed
from amaranth_vta.sw.runtime.device import RunResult, SystemResult


class FunctionalSystem(SystemBacked):
    """A `SystemDevice` without a clock: functional models on one memory, which run sequentially."""

    name = "functional"

    def __init__(
        self,
        system: SystemConfig,
        memory_bytes: int,
        progress: Callable[[str], None] | None = None,
        origin: int = 0,
        clear: bool = False,
    ) -> None:
        super().__init__(system, memory_bytes, origin)
        self.parts = self.models = [
            FunctionalDevice(
                system.config, memory_bytes, clear=clear, progress=progress, memory=self
            )
            for _ in range(system.machines)
        ]

    def run_all(
        self, streams: Sequence[tuple[int, int]], time_limit: float | None = None
    ) -> SystemResult:
        """As `SystemDevice.run_all`; ``time_limit`` is for each stream."""
        runs = [
            model.run(*stream, time_limit)
            for model, stream in zip(self.models, streams, strict=False)
        ]
        return SystemResult(runs, None)


class EstimateSystem(FunctionalSystem):
    """A `SystemDevice` with estimated cycles: results of functional models, and a replay of the
    streams on machines that share a bus. A stream with a fault has no cycles.

    ``timing_only`` is as in `EstimateDevice`. Raises `ToolchainError` without a C++ compiler.
    """

    name = "estimate"

    def __init__(
        self,
        system: SystemConfig,
        memory_bytes: int,
        dram: str = "ideal",
        timing_only: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(system, memory_bytes, progress, clear=timing_only)
        self._engine = SystemEngine(system, memory_timing(dram), progress)
        self._timing_only = timing_only

    def run_all(
        self, streams: Sequence[tuple[int, int]], time_limit: float | None = None
    ) -> SystemResult:
        """As `SystemDevice.run_all`; ``time_limit`` is for each stream, in the functional model."""
        started = time.perf_counter()
        replays = self._engine.replay(self.memory, streams)
        complete = all(replay.cycles is not None for replay in replays)
        if complete and self._timing_only:
            runs = [RunResult(cycles=None) for _ in streams]
        else:
            runs = super().run_all(streams, time_limit).runs
        for run, replay in zip(runs, replays, strict=True):
            run.seconds = (time.perf_counter() - started) / len(runs)
            if run.fault is None and replay.cycles is not None:
                counted = completed(self.config, replay.counters)
                run.cycles, run.estimated = replay.cycles, True
                run.counters = {"cycles": replay.cycles, **counted}
        if not complete or any(run.cycles is None for run in runs):
            return SystemResult(runs, None)
        return SystemResult(runs, self._engine.cycles(replays))
