"""What all simulated systems of machines have in common: `SystemBacked`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.sim.memory import MemoryBacked
from amaranth_vta.sw.runtime.device import Limits, RunResult, SystemResult


class HasLimits(Protocol):
    def set_limits(self, limits: Limits) -> None: ...


class SystemBacked(MemoryBacked, ABC):
    """The memory of a `SystemDevice`, its limits and its runs as a `Device`. Subclasses set
    ``parts``, one per machine.
    """

    parts: Sequence[HasLimits]

    def __init__(self, system: SystemConfig, memory_bytes: int, origin: int = 0) -> None:
        super().__init__(memory_bytes, origin)
        self.config = system.config
        self.machines = system.machines

    def set_limits(self, limits: Limits) -> None:
        """As `Device.set_limits`, for all machines."""
        for part in self.parts:
            part.set_limits(limits)

    def run(
        self,
        insn_addr: int,
        insn_count: int,
        time_limit: float | None = None,
        watched: Sequence[int] = (),
    ) -> RunResult:
        """As `Device.run`, on machine 0; ``watched`` has no effect."""
        (result,) = self.run_all([(insn_addr, insn_count)], time_limit).runs
        return result

    @abstractmethod
    def run_all(
        self, streams: Sequence[tuple[int, int]], time_limit: float | None = None
    ) -> SystemResult:
        """As `SystemDevice.run_all`."""
