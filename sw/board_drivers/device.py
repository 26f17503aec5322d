"""The device `board`: a machine accessed through a transport."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.boards import protocol
from amaranth_vta.hw.boards.protocol import WORD_BYTES
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.registers import REGISTERS
from amaranth_vta.sw.runtime.device import Limits, RunResult, limit_of
from amaranth_vta.sw.runtime.driver import MismatchError, RegisterDriver
from amaranth_vta.sw.runtime.scrub import scrub_stream

from .link import LinkError
from .transport import BoardError, Transport

# Granularity of memory sizes, as on other devices.
_UNIT = 64
# Runs of at least this many zero words are not sent: the board fills them in.
_ZEROS = 64
# Interval between polls of the status, and timeout of a stop.
_POLL_SECONDS = 0.001
_STOP_SECONDS = 2.0


class BoardDevice(RegisterDriver):
    """The `Device` accessed through ``transport``, which it closes.

    Its memory is the first ``memory_bytes`` of the board's memory; accesses beyond are bus errors.
    Memory and scratchpads are cleared.

    Raises `MismatchError`, which names the parameter, if the board's machine has another
    configuration, `BoardError` if its memory is too small or not addressable by the machine, and
    `LinkError` if it stops answering.
    """

    name = "board"

    def __init__(self, config: Config, memory_bytes: int, transport: Transport) -> None:
        self.config = config
        self.memory_bytes = -(-memory_bytes // _UNIT) * _UNIT
        self._transport = transport
        configuration = transport.configuration
        if configuration is None:
            self._check_machine()
        elif configuration != protocol.configuration_hash(config):
            self._check_machine()
            raise MismatchError(
                "the board was built for a configuration with other parameters than this version "
                "of amaranth-vta knows: build its bitstream with this version"
            )
        if self.memory_bytes > transport.memory_bytes:
            raise BoardError(
                f"the program needs {self.memory_bytes:,} bytes of memory, and the board has "
                f"{transport.memory_bytes:,}"
            )
        if transport.origin + self.memory_bytes > config.dram_bytes:
            raise BoardError(
                f"the board's memory from {transport.origin:#x} on is beyond the "
                f"{config.dram_bytes:,} bytes that a machine with LOG_DRAM_SIZE = "
                f"{config.log_dram_size} can address"
            )
        if self._status("busy"):
            self._stop()  # a run left behind by an earlier host
        self._forget()

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """A copy of ``size`` bytes; raises `ValueError` beyond the memory."""
        self._check_bounds(address, size)
        first, end = _words_around(address, size)
        raw = self._transport.read(WORD_BYTES * first, end - first)
        inside = np.frombuffer(raw, np.uint8)[address - WORD_BYTES * first :]
        return inside[:size].copy()

    def write(self, address: int, data: npt.NDArray[np.generic] | bytes) -> None:
        """Write the bytes of ``data``; raises `ValueError` beyond the memory."""
        raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
        self._check_bounds(address, len(raw))
        first, end = _words_around(address, len(raw))
        before = address - WORD_BYTES * first
        after = WORD_BYTES * end - address - len(raw)
        if before:
            raw = self._transport.read(WORD_BYTES * first, 1)[:before] + raw
        if after:
            raw += self._transport.read(WORD_BYTES * (end - 1), 1)[WORD_BYTES - after :]
        for start, words in _runs(np.frombuffer(raw, "<u4")):
            place = WORD_BYTES * (first + start)
            if words.any():
                self._transport.write(place, words.tobytes())
            else:
                self._transport.fill(place, words.size)

    def run(
        self,
        insn_addr: int,
        insn_count: int,
        time_limit: float | None = None,
        watched: Sequence[int] = (),
    ) -> RunResult:
        """Run ``insn_count`` instructions from byte ``insn_addr``. Ignores ``watched``: the result
        does not report when these retired.

        A run that exceeds ``time_limit``, in seconds, is stopped and ends with the fault
        ``timeout`` at the instruction that it had reached. Raises `LinkError` if the board stops
        answering, and `ValueError` for instructions beyond the memory of a board that would fetch
        them.
        """
        if not self._transport.limits_machine:
            self._check_bounds(insn_addr, insn_count * isa.INSTRUCTION_BYTES)
        return self._run(insn_addr, insn_count, time_limit)

    def set_limits(self, limits: Limits) -> None:
        """See `Device.set_limits`. On a board that does not limit its machine, also keeps transfers
        within the memory.
        """
        if not self._transport.limits_machine:
            limits = {memory: self._last_limit(limits, memory) for memory in isa.LIMITED}
        super().set_limits(limits)

    def read_words(self, address: int, count: int) -> list[int]:
        return self._transport.read_registers(address, count)

    def write_words(self, address: int, words: Sequence[int]) -> None:
        self._transport.write_registers(address, words)

    def close(self) -> None:
        self._transport.close()

    def _last_limit(self, limits: Limits, memory: isa.Memory) -> int:
        # At least one element, since 0 means no limit; an element is smaller than a memory page.
        most = max(1, self.memory_bytes // self.config.memory(memory).element_bytes)
        return min(limit_of(limits, memory) or most, most)

    def _forget(self) -> None:
        """Set base registers to the memory's origin, and clear the scratchpads and the device's
        part of the board's memory.
        """
        transport = self._transport
        bases = REGISTERS[f"{isa.LIMITED[0].name}_BASE"].offset
        low, high = transport.origin & 0xFFFF_FFFF, transport.origin >> 32
        self.write_words(bases, [low, high] * len(isa.LIMITED))
        transport.limit(transport.memory_bytes)
        stream = scrub_stream(self.config)
        transport.write(0, stream.tobytes())
        self.set_limits({})
        fault = self._run(0, len(stream), _STOP_SECONDS).fault
        if fault is not None:
            raise LinkError(f"the machine cannot scrub its scratchpads: {fault}")
        transport.fill(0, max(self.memory_bytes, stream.nbytes) // WORD_BYTES)
        transport.limit(self.memory_bytes)

    def _run(self, insn_addr: int, insn_count: int, time_limit: float | None) -> RunResult:
        started = time.monotonic()
        transport = self._transport
        transport.flush()
        self._launch(transport.origin + insn_addr, insn_count)
        while not self._status("done"):
            if time_limit is not None and time.monotonic() > started + time_limit:
                self._stop()
                transport.invalidate()
                seconds = time.monotonic() - started
                return RunResult(cycles=None, fault=self._stopped_fault(), seconds=seconds)
            time.sleep(_POLL_SECONDS)
        transport.invalidate()
        seconds = time.monotonic() - started
        return RunResult(
            cycles=self._read("CYCLES"),
            fault=self._fault(),
            tokens_left=self._tokens_left(),
            counters=self._counters(),
            seconds=seconds,
        )

    def _stop(self) -> None:
        self._ask_to_stop()
        deadline = time.monotonic() + _STOP_SECONDS
        while self._status("busy"):
            if time.monotonic() > deadline:
                raise LinkError(f"the machine has not stopped within {_STOP_SECONDS:g} seconds")

    def _check_bounds(self, address: int, size: int) -> None:
        if address < 0 or size < 0 or address + size > self.memory_bytes:
            raise ValueError(
                f"{size} bytes at {address:#x} are not within the device's "
                f"{self.memory_bytes:#x} bytes of memory"
            )


def _words_around(address: int, size: int) -> tuple[int, int]:
    """First word that holds a byte of the range, and the first word after the range."""
    return address // WORD_BYTES, -(-(address + size) // WORD_BYTES)


def _runs(words: npt.NDArray[np.uint32]) -> list[tuple[int, npt.NDArray[np.uint32]]]:
    """``words`` split into parts, each with its position; a long run of zeros is its own part."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], words == 0, [0])).astype(np.int8)))
    parts, at = [], 0
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        if end - start >= _ZEROS:
            if start > at:
                parts.append((at, words[at:start]))
            parts.append((int(start), words[start:end]))
            at = int(end)
    if at < words.size:
        parts.append((at, words[at:]))
    return parts
