"""Driver for the machine's registers, independent of how they are accessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from amaranth_vta.errors import VtaError
from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.registers import (
    COUNTERS,
    COUNTERS_OFFSET,
    IDENTITY,
    REGISTERS,
    VERSION,
    WORD_BYTES,
)

from .counters import completed
from .device import Fault, Limits, limit_of

_WORD_BITS = 8 * WORD_BYTES


class MismatchError(VtaError, RuntimeError):
    """The hardware's configuration differs from the software's; the message names the parameter."""


class RegisterDriver:
    """Register sequences of a `Device`; subclasses provide the configuration and word accesses."""

    config: Config

    # Required values of the LIMIT registers in the next run, and their known current values.
    _limits: tuple[int, ...] = (0,) * len(isa.LIMITED)
    _written_limits: tuple[int, ...] | None = None

    def read_words(self, address: int, count: int) -> list[int]:
        """Read ``count`` words, starting with the register at byte ``address``."""
        raise NotImplementedError

    def write_words(self, address: int, words: Sequence[int]) -> None:
        """Write ``words`` in order, starting with the register at byte ``address``."""
        raise NotImplementedError

    def _check_machine(self) -> None:
        """Raises `MismatchError`, which names the parameter, if the machine has another
        configuration."""
        for name, expected in (("IDENTITY", IDENTITY), ("VERSION", VERSION)):
            found = self._read(name)
            if found != expected:
                raise MismatchError(f"the machine's {name} is {found:#x}, not {expected:#x}")
        names = [item.name for item in fields(self.config)]
        found_values = self.read_words(REGISTERS[names[0].upper()].offset, len(names))
        for name, found in zip(names, found_values, strict=True):
            expected = int(getattr(self.config, name))
            if found != expected:
                raise MismatchError(
                    f"the machine has {name.upper()} = {found}, but its software is for {expected}"
                )

    def set_limits(self, limits: Limits) -> None:
        """See `Device.set_limits`."""
        self._limits = tuple(limit_of(limits, memory) for memory in isa.LIMITED)

    def set_bases(self, bases: Mapping[isa.Memory, int]) -> None:
        """Set the byte address of element 0 of each memory of `isa.LIMITED`, 0 if absent, until the
        next call or a reset of the machine.
        """
        for memory in isa.LIMITED:
            self._write(f"{memory.name}_BASE", bases.get(memory, 0))

    def _launch(self, insn_addr: int, insn_count: int) -> None:
        self._prepare(insn_addr, insn_count)
        self._start()

    def _prepare(self, insn_addr: int, insn_count: int) -> None:
        """Write the registers of the next run."""
        if self._limits != self._written_limits:
            self.write_words(REGISTERS[f"{isa.LIMITED[0].name}_LIMIT"].offset, self._limits)
            self._written_limits = self._limits
        self._write("INSN_ADDR", insn_addr)
        self._write("INSN_COUNT", insn_count)
        self._write("INTERRUPT_ENABLE", _bit("INTERRUPT_ENABLE", "done"))

    def _start(self) -> None:
        self._write("CONTROL", _bit("CONTROL", "launch"))

    def _ask_to_stop(self) -> None:
        self._write("CONTROL", _bit("CONTROL", "reset"))

    def _status(self, name: str) -> bool:
        return bool(self._read("STATUS") & _bit("STATUS", name))

    def _stopped_fault(self) -> Fault | None:
        """The fault of a run that was told to stop and has ended: ``timeout`` at the instruction
        that it had reached, or its own outcome if it had ended before.
        """
        self._write("INTERRUPT_ENABLE", 0)
        if not self._status("stopped"):
            return self._fault()
        module = isa.Module(_part(self._read("FAULT"), "FAULT", "module"))
        return Fault(module.name.lower(), self._read("FAULT_INSN"), isa.Cause.TIMEOUT.name.lower())

    def _counters(self) -> dict[str, int]:
        """``cycles`` only or, on a machine with counters, the result of `completed`."""
        cycles = self._read("CYCLES")
        if not self.config.counters:
            return {"cycles": cycles}
        words = self.read_words(COUNTERS_OFFSET, 2 * len(COUNTERS))
        counted = {
            counter.name: low | high << _WORD_BITS
            for counter, low, high in zip(COUNTERS, words[::2], words[1::2], strict=True)
        }
        return {"cycles": cycles, **completed(self.config, counted)}

    def _tokens_left(self) -> dict[str, int]:
        return {
            name: self._read(f"TOKENS_{name.upper()}")
            for name in map(isa.queue_name, isa.TOKEN_QUEUES)
        }

    def _fault(self) -> Fault | None:
        if not self._status("fault"):
            return None
        report, index = self._read("FAULT"), self._read("FAULT_INSN")
        module = isa.Module(_part(report, "FAULT", "module"))
        cause = isa.Cause(_part(report, "FAULT", "cause"))
        return Fault(module.name.lower(), index, cause.name.lower())

    def _read(self, name: str) -> int:
        register = REGISTERS[name]
        words = self.read_words(register.offset, register.width // _WORD_BITS)
        return sum(word << _WORD_BITS * number for number, word in enumerate(words))

    def _write(self, name: str, value: int) -> None:
        register = REGISTERS[name]
        if not 0 <= value < 1 << register.width:
            raise ValueError(f"{name} = {value} is not a number of {register.width} bits")
        mask = (1 << _WORD_BITS) - 1
        words = [value >> bit & mask for bit in range(0, register.width, _WORD_BITS)]
        self.write_words(register.offset, words)


def _bit(register: str, name: str) -> int:
    return 1 << REGISTERS[register].part(name).offset


def _part(value: int, register: str, name: str) -> int:
    part = REGISTERS[register].part(name)
    return value >> part.offset & (1 << part.width) - 1
