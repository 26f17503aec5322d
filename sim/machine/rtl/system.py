"""Several machines with one memory, compiled by Verilator: `RtlSystem`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.registers import ADDRESS_WIDTH, WORD_BYTES
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.sim.machine.dram import ProtocolError, memory_timing
from amaranth_vta.sim.machine.host import SILENT_CYCLES, STOP_POLLS, StuckError
from amaranth_vta.sim.machine.shared_memory import SystemBacked
from amaranth_vta.sw.runtime.device import RunResult, SystemResult
from amaranth_vta.sw.runtime.driver import RegisterDriver

from .build import Progress, system_library
from .engine import CompiledMachine


class RtlSystem(SystemBacked):
    """A cycle-accurate `SystemDevice`. ``dram`` names a memory model of `sim.machine.dram`, which
    accepts as many bursts of each machine as of a single one.

    Raises `ToolchainError` if the simulator cannot be built.
    """

    name = "rtl"

    def __init__(
        self,
        system: SystemConfig,
        memory_bytes: int,
        dram: str = "ideal",
        progress: Progress | None = None,
        origin: int = 0,
    ) -> None:
        timing = memory_timing(dram)
        super().__init__(system, memory_bytes, origin)
        library = system_library(system, progress)
        self.simulator = CompiledMachine(library, self.memory, timing, origin=origin)
        self.parts = self.drivers = [
            _MachineRegisters(system.config, self.simulator, number)
            for number in range(system.machines)
        ]

    def run_all(
        self, streams: Sequence[tuple[int, int]], time_limit: float | None = None
    ) -> SystemResult:
        """As `SystemDevice.run_all`. Raises `ProtocolError` if the system violates a bus protocol,
        and `StuckError` if it does not use its bus for long.
        """
        self.start_all(streams)
        return self.finish_all(time_limit)

    def start_all(self, streams: Sequence[tuple[int, int]]) -> None:
        """Launch a stream on each machine, as `run_all` does, without waiting for their ends."""
        self._used = self.drivers[: len(streams)]
        for driver, stream in zip(self._used, streams, strict=True):
            driver.prepare(*stream)
        self._starts = [driver.start() for driver in self._used]

    def finish_all(self, time_limit: float | None = None) -> SystemResult:
        """Wait until the machines that `start_all` has launched are done; raises as `run_all`."""
        began = time.monotonic()
        used = running = self._used
        while running:
            interrupted = self.simulator.advance(self.simulator.cycles_per_poll)
            ended = [
                driver
                for driver in running
                if (interrupted or driver.is_stopped) and driver.has_ended()
            ]
            running = [driver for driver in running if driver not in ended]
            if running and time_limit is not None and time.monotonic() > began + time_limit:
                self._stop(running)
                break
            if self.simulator.silent_cycles > SILENT_CYCLES:
                self.reset()
                raise StuckError(f"the machines have not used their bus for {SILENT_CYCLES} cycles")
        runs = [driver.outcome() for driver in used]
        if not self.simulator.quiet and not any(driver.is_draining() for driver in used):
            raise ProtocolError("all machines are done while accesses to memory are in flight")
        seconds = time.monotonic() - began
        for run in runs:
            run.seconds = seconds / len(runs)
        self._drain(used)
        if any(driver.is_stopped for driver in used):
            return SystemResult(runs, None)
        ends = [start + (run.cycles or 0) for start, run in zip(self._starts, runs, strict=True)]
        return SystemResult(runs, max(ends) - self._starts[0])

    def reset(self) -> None:
        """Reset all machines and drop their accesses in flight."""
        self.simulator.reset()
        for driver in self.drivers:
            driver.forget()

    def close(self) -> None:
        """End the simulation."""
        self.simulator.close()

    def _stop(self, running: Sequence[_MachineRegisters]) -> None:
        """Stop machines and wait for their ends."""
        for driver in running:
            driver.stop()
        for driver in running:
            for _ in range(STOP_POLLS):
                if driver.has_ended():
                    break
                self.simulator.advance(self.simulator.cycles_per_poll)
            else:
                self.reset()
                raise StuckError("memory has not answered within the polls of a stop")

    def _drain(self, used: Sequence[_MachineRegisters]) -> None:
        """Wait for memory to answer; a memory that never does requires the reset line."""
        for _ in range(STOP_POLLS):
            if not any(driver.is_draining() for driver in used):
                return
            self.simulator.advance(self.simulator.cycles_per_poll)
        self.reset()


class _MachineRegisters(RegisterDriver):
    """The registers of machine ``number``."""

    def __init__(self, config: Config, simulator: CompiledMachine, number: int) -> None:
        self.config = config
        self._simulator = simulator
        self._first = number << ADDRESS_WIDTH
        self.is_stopped = False
        self.forget()
        self._check_machine()

    def read_words(self, address: int, count: int) -> list[int]:
        read = self._simulator.read_register
        return [read(self._first + address + WORD_BYTES * at) for at in range(count)]

    def write_words(self, address: int, words: Sequence[int]) -> None:
        for at, word in enumerate(words):
            self._simulator.write_register(self._first + address + WORD_BYTES * at, word)

    def prepare(self, insn_addr: int, insn_count: int) -> None:
        self.is_stopped = False
        self._prepare(insn_addr, insn_count)

    def start(self) -> int:
        """Launch; returns the cycle."""
        self._start()
        return self._simulator.run_start

    def has_ended(self) -> bool:
        """Whether the run has ended; then the machine no longer interrupts."""
        # A machine that ended before it was asked to stop is not done: the stop has cleared that.
        running = self._status("busy") if self.is_stopped else not self._status("done")
        if running:
            return False
        self._write("INTERRUPT_ENABLE", 0)
        return True

    def stop(self) -> None:
        """Ask the machine to end its run early."""
        self.is_stopped = True
        self._ask_to_stop()

    def is_draining(self) -> bool:
        return self._status("draining")

    def forget(self) -> None:
        """A machine after reset has no limits."""
        self._written_limits = (0,) * len(isa.LIMITED)

    def outcome(self) -> RunResult:
        """The result of a run that has ended; of one that was stopped, without cycles."""
        counters = self._counters()
        return RunResult(
            cycles=None if self.is_stopped else counters["cycles"],
            fault=self._stopped_fault() if self.is_stopped else self._fault(),
            tokens_left=self._tokens_left(),
            counters=counters,
        )
