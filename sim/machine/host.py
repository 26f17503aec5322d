"""Drives a simulated machine like a device driver: through its registers and its memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.registers import WORD_BYTES
from amaranth_vta.sim.memory import MemoryBacked
from amaranth_vta.sim.trace.perfetto import Timeline
from amaranth_vta.sim.trace.timeline import spans
from amaranth_vta.sw.runtime.device import Fault, RunResult, end_in_dram
from amaranth_vta.sw.runtime.driver import RegisterDriver

from .dram import ProtocolError

# More cycles than any compiled instruction can keep the bus silent.
SILENT_CYCLES = 20_000_000
# Maximum number of polls for the end of memory accesses in flight after a stop.
STOP_POLLS = 20


class StuckError(RuntimeError):
    """A run in which the machine no longer uses its buses."""


class Machine(Protocol):
    """A simulated machine; `CompiledMachine` in rtl/engine.py documents the members."""

    cycles_per_poll: int

    def write_register(self, address: int, value: int) -> None: ...
    def read_register(self, address: int) -> int: ...
    def advance(self, most: int) -> bool: ...
    def reset(self) -> None: ...
    def take_moments(self) -> np.ndarray: ...
    def await_writes(self, addresses: Sequence[int]) -> None: ...
    def writes_reached(self) -> list[int]: ...
    def close(self) -> None: ...
    @property
    def run_cycles(self) -> int: ...
    @property
    def silent_cycles(self) -> int: ...
    @property
    def run_start(self) -> int: ...
    @property
    def quiet(self) -> bool: ...


class SimulatedDevice(MemoryBacked, RegisterDriver):
    """A `Device` that drives a `Machine` on ``memory``, which `attach` sets.

    ``timeline`` records each run; the machine must then be ``watched``.
    """

    name = "simulated"
    machine: Machine

    def __init__(
        self,
        config: Config,
        memory_bytes: int,
        timeline: Timeline | None = None,
        origin: int = 0,
    ) -> None:
        super().__init__(memory_bytes, origin)
        self.config = config
        self._written_limits = self._limits  # a fresh machine has none
        self._timeline = timeline

    def attach(self, machine: Machine) -> None:
        """Use ``machine``; raises `MismatchError` if its configuration is not the device's."""
        self.machine = machine
        self._check_machine()

    def read_words(self, address: int, count: int) -> list[int]:
        return [self.machine.read_register(address + WORD_BYTES * at) for at in range(count)]

    def write_words(self, address: int, words: Sequence[int]) -> None:
        for at, word in enumerate(words):
            self.machine.write_register(address + WORD_BYTES * at, word)

    def run(
        self,
        insn_addr: int,
        insn_count: int,
        time_limit: float | None = None,
        watched: Sequence[int] = (),
    ) -> RunResult:
        """Run ``insn_count`` instructions from byte ``insn_addr``; ``reached`` of the result has
        the cycle in which memory had answered the last write of each STORE in ``watched``, by
        index.

        A run stopped after ``time_limit`` seconds reports a ``timeout`` at the instruction that it
        had reached. Raises `ValueError` if the registers cannot hold one of the two numbers,
        `ProtocolError` if the machine violates a bus protocol, and `StuckError` if it runs for
        `SILENT_CYCLES` without using its bus.
        """
        started = time.monotonic()
        words: list[int] = []
        if self._timeline is not None:
            words = self.instruction_words(insn_addr, insn_count)
            self.machine.take_moments()  # discard those of a stopped run
        deadline = None if time_limit is None else started + time_limit
        self.machine.await_writes(self._last_bytes(insn_addr, watched))
        self._launch(insn_addr, insn_count)
        while not self.machine.advance(self.machine.cycles_per_poll):
            if deadline is not None and time.monotonic() > deadline:
                fault = self._stop()
                return RunResult(cycles=None, fault=fault, seconds=time.monotonic() - started)
            if self.machine.silent_cycles > SILENT_CYCLES:
                status = self._read("STATUS")
                self._reset()
                raise StuckError(
                    f"the machine has not used its bus for {SILENT_CYCLES} cycles; STATUS is "
                    f"{status:#x}, and no access to memory is in flight"
                )
        cycles, start = self.machine.run_cycles, self.machine.run_start
        reached = tuple(at - start for at in self.machine.writes_reached())
        if self._timeline is not None:
            moments = self.machine.take_moments()
            self._timeline.add(self.config, words, spans(moments, start, start + cycles), cycles)
        if not self.machine.quiet and not self._status("draining"):
            raise ProtocolError("the machine is done while accesses to memory are in flight")
        self._write("INTERRUPT_ENABLE", 0)
        result = RunResult(
            cycles=cycles,
            fault=self._fault(),
            tokens_left=self._tokens_left(),
            counters=self._counters(),
            seconds=time.monotonic() - started,
            reached=reached,
        )
        self._drain()
        return result

    def _last_bytes(self, insn_addr: int, stores: Sequence[int]) -> list[int]:
        """Address of the last byte that each STORE writes; empty if one of them writes nothing."""
        decode = isa.instruction_set(self.config).decode
        size = self.config.memory(isa.Memory.OUT).element_bytes
        found = []
        for index in stores:
            (word,) = self.instruction_words(insn_addr + index * isa.INSTRUCTION_BYTES, 1)
            store = decode(word)
            if not isinstance(store, isa.Store) or not store.x_size or not store.y_size:
                return []
            found.append(end_in_dram(store) * size - 1)
        return found

    def close(self) -> None:
        """End the simulation and complete its wave file."""
        self.machine.close()

    def _stop(self) -> Fault | None:
        """Stop the run; returns a timeout at the instruction reached, or None if the run had just
        ended.
        """
        self._ask_to_stop()
        most = STOP_POLLS * self.machine.cycles_per_poll
        # A run that ends while the stop is written does not interrupt: the stop has cleared that.
        if not self.machine.advance(most) and self._status("busy"):
            self._reset()
            raise StuckError(f"memory has not answered within {most} cycles of a stop")
        return self._stopped_fault()

    def _reset(self) -> None:
        self.machine.reset()
        self._written_limits = (0,) * len(isa.LIMITED)

    def _drain(self) -> None:
        """Wait for memory to answer; a memory that never does requires the reset line."""
        for _ in range(STOP_POLLS):
            if not self._status("draining"):
                return
            self.machine.advance(self.machine.cycles_per_poll)
        self._reset()
