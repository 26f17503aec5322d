"""Drives a simulated machine as a device driver would: through its registers and its memory."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import Protocol

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.registers import COUNTERS, IDENTITY, REGISTERS, VERSION, WORD_BYTES
from amaranth_vta.sim.memory import MemoryBacked
from amaranth_vta.sim.trace.perfetto import Timeline
from amaranth_vta.sim.trace.timeline import spans
from amaranth_vta.sw.runtime.counters import completed
from amaranth_vta.sw.runtime.device import Fault, RunResult

from .dram import ProtocolError

# Longer than the longest instruction that a compiler would make, in which the bus may be silent.
_SILENT_CYCLES = 20_000_000
# How often to look until memory has answered what was under way when a run was stopped.
_STOP_LOOKS = 20


class StuckError(RuntimeError):
    """The machine runs, but nothing happens on its buses any more."""


class MismatchError(RuntimeError):
    """The hardware's configuration is not the one that the software was told."""


class Machine(Protocol):
    """A simulated machine; `CompiledMachine` of rtl/engine.py documents each part."""

    cycles_a_look: int

    def write_register(self, address: int, value: int) -> None: ...
    def read_register(self, address: int) -> int: ...
    def advance(self, most: int) -> bool: ...
    def reset(self) -> None: ...
    def take_moments(self) -> np.ndarray: ...
    def close(self) -> None: ...
    @property
    def run_cycles(self) -> int: ...
    @property
    def silent_cycles(self) -> int: ...
    @property
    def run_start(self) -> int: ...
    @property
    def quiet(self) -> bool: ...


class SimulatedDevice(MemoryBacked):
    """The `Device` around a `Machine` on ``memory``, which a subclass makes and attaches.

    ``timeline`` gets each run of the machine, which must then be a watched one.
    """

    machine: Machine

    def __init__(self, config: Config, memory_bytes: int, timeline: Timeline | None = None) -> None:
        super().__init__(memory_bytes)
        self.config = config
        self._timeline = timeline

    def attach(self, machine: Machine) -> None:
        """Takes ``machine``; `MismatchError` if it is not one of this device's configuration."""
        self.machine = machine
        for name, expected in (("IDENTITY", IDENTITY), ("VERSION", VERSION)):
            found = self._read(name)
            if found != expected:
                raise MismatchError(f"the machine's {name} is {found:#x} and not {expected:#x}")
        for item in fields(self.config):
            found, expected = self._read(item.name.upper()), int(getattr(self.config, item.name))
            if found != expected:
                raise MismatchError(
                    f"the machine has {item.name.upper()} = {found}, but its software is for "
                    f"{expected}"
                )

    def run(self, insn_addr: int, insn_count: int, time_limit: float | None = None) -> RunResult:
        """Runs ``insn_count`` instructions from byte ``insn_addr``.

        A run that is stopped at ``time_limit``, in seconds, is a ``timeout`` of the instruction
        that it was at. Raises `ValueError` if the registers cannot hold one of the two numbers,
        `ProtocolError` if the machine breaks a rule of its buses, and `StuckError` if it runs for
        `_SILENT_CYCLES` without using its bus.
        """
        started = time.monotonic()
        words: list[int] = []
        if self._timeline is not None:
            words = self.instruction_words(insn_addr, insn_count)
            self.machine.take_moments()  # of a run that was stopped
        deadline = None if time_limit is None else started + time_limit
        self._write("INSN_ADDR", insn_addr)
        self._write("INSN_COUNT", insn_count)
        self._write("INTERRUPT_ENABLE", _bit("INTERRUPT_ENABLE", "done"))
        self._write("CONTROL", _bit("CONTROL", "launch"))
        while not self.machine.advance(self.machine.cycles_a_look):
            if deadline is not None and time.monotonic() > deadline:
                fault = self._stop()
                return RunResult(cycles=None, fault=fault, seconds=time.monotonic() - started)
            if self.machine.silent_cycles > _SILENT_CYCLES:
                status = self._read("STATUS")
                self.machine.reset()
                raise StuckError(
                    f"the machine has not used its bus for {_SILENT_CYCLES} cycles; STATUS is "
                    f"{status:#x}, and no access to memory is under way"
                )
        cycles = self.machine.run_cycles
        if self._timeline is not None:
            moments, start = self.machine.take_moments(), self.machine.run_start
            self._timeline.add(self.config, words, spans(moments, start, start + cycles), cycles)
        if not self.machine.quiet and not self._read("STATUS") & _bit("STATUS", "draining"):
            raise ProtocolError("the machine is done while accesses to memory are under way")
        self._write("INTERRUPT_ENABLE", 0)
        result = RunResult(
            cycles=cycles,
            fault=self._fault(),
            tokens_left={
                name: self._read(f"TOKENS_{name.upper()}")
                for name in map(isa.queue_name, isa.TOKEN_QUEUES)
            },
            counters=self._counters(),
            seconds=time.monotonic() - started,
        )
        self._drain()
        return result

    def close(self) -> None:
        """Ends the simulation and the file of its waves."""
        self.machine.close()

    def _stop(self) -> Fault | None:
        """Stops the run: `timeout` of the instruction it had reached, None if it had just ended."""
        self._write("CONTROL", _bit("CONTROL", "reset"))
        most = _STOP_LOOKS * self.machine.cycles_a_look
        if not self.machine.advance(most):
            self.machine.reset()
            raise StuckError(f"memory has not answered within {most} cycles of a stop")
        self._write("INTERRUPT_ENABLE", 0)
        if not self._read("STATUS") & _bit("STATUS", "stopped"):
            return self._fault()
        module = isa.Module(_part(self._read("FAULT"), "FAULT", "module"))
        return Fault(module.name.lower(), self._read("FAULT_INSN"), isa.Cause.TIMEOUT.name.lower())

    def _counters(self) -> dict[str, int]:
        """`COUNTERS` by name, and what follows from them."""
        counted = {counter.name: self._read(counter.name.upper()) for counter in COUNTERS}
        return {"cycles": self._read("CYCLES"), **completed(self.config, counted)}

    def _drain(self) -> None:
        """Waits for a memory that answers late; one that never does needs the reset line."""
        for _ in range(_STOP_LOOKS):
            if not self._read("STATUS") & _bit("STATUS", "draining"):
                return
            self.machine.advance(self.machine.cycles_a_look)
        self.machine.reset()

    def _fault(self) -> Fault | None:
        if not self._read("STATUS") & _bit("STATUS", "fault"):
            return None
        report, index = self._read("FAULT"), self._read("FAULT_INSN")
        module = isa.Module(_part(report, "FAULT", "module"))
        cause = isa.Cause(_part(report, "FAULT", "cause"))
        return Fault(module.name.lower(), index, cause.name.lower())

    def _read(self, name: str) -> int:
        register = REGISTERS[name]
        return sum(
            self.machine.read_register(register.offset + WORD_BYTES * number) << 32 * number
            for number in range(register.width // 32)
        )

    def _write(self, name: str, value: int) -> None:
        register = REGISTERS[name]
        if not 0 <= value < 1 << register.width:
            raise ValueError(f"{name} = {value} is not a number of {register.width} bits")
        for number in range(register.width // 32):
            word = value >> 32 * number & 0xFFFFFFFF
            self.machine.write_register(register.offset + WORD_BYTES * number, word)


def _bit(register: str, name: str) -> int:
    return 1 << REGISTERS[register].part(name).offset


def _part(value: int, register: str, name: str) -> int:
    part = REGISTERS[register].part(name)
    return value >> part.offset & (1 << part.width) - 1
