"""A device: the machine on a board that is connected by a serial line."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.boards import protocol
from amaranth_vta.hw.boards.protocol import WORD_BYTES, BoardRegister
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.registers import REGISTERS
from amaranth_vta.sw.runtime.device import RunResult
from amaranth_vta.sw.runtime.driver import MismatchError, RegisterDriver
from amaranth_vta.sw.runtime.scrub import scrub_stream

from .link import Line, Link, LinkError

# Memory sizes are rounded up to this, as on other devices.
_UNIT = 64
# Runs of zeros of at least this many words are not sent: the board fills them in.
_ZEROS = 64
# Time between polls of the status, and the time that a stop may take.
_POLL_SECONDS = 0.001
_STOP_SECONDS = 2.0


class BoardError(ValueError):
    """A board that is missing, or whose memory is too small for a program."""


def open_line(port: str) -> Line:
    """The serial port named ``port``, a path or a URL of pyserial; raises `BoardError`."""
    import serial

    try:
        line: Line = serial.serial_for_url(port, baudrate=protocol.BAUD, write_timeout=5)
    except (OSError, ValueError) as error:
        raise BoardError(f"the serial port {port} cannot be opened: {error}") from None
    return line


class BoardDevice(RegisterDriver):
    """The `Device` at the other end of ``line``.

    Its memory is that of the board up to ``memory_bytes``, filled with zeros, as its scratchpads
    are; what lies beyond is a bus error.

    Raises `LinkError` if nothing answers, `MismatchError`, which names the parameter, if the board
    has a machine of another configuration, and `BoardError` if its memory is too small.
    """

    name = "board"

    def __init__(self, config: Config, memory_bytes: int, line: Line) -> None:
        self.config = config
        self.memory_bytes = -(-memory_bytes // _UNIT) * _UNIT
        self._link = Link(line)
        board = self._link.identify()
        if board[BoardRegister.IDENTITY] != protocol.IDENTITY:
            raise LinkError(f"the device at {line.port} is not a board with this machine")
        if board[BoardRegister.VERSION] != protocol.VERSION:
            raise MismatchError(
                f"the board speaks version {board[BoardRegister.VERSION]} of the link and not "
                f"{protocol.VERSION}: build its bitstream with this version of amaranth-vta"
            )
        if board[BoardRegister.CONFIGURATION] != protocol.configuration_hash(config):
            self._check_machine()
            raise MismatchError(
                "the board was built for a configuration with other parameters than this version "
                "of amaranth-vta knows: build its bitstream with this version"
            )
        if self.memory_bytes > board[BoardRegister.MEMORY_BYTES]:
            raise BoardError(
                f"the program needs {self.memory_bytes:,} bytes of memory, and the board has "
                f"{board[BoardRegister.MEMORY_BYTES]:,}"
            )
        self.clock_hz = board[BoardRegister.CLOCK_HZ]
        if self._status("busy"):
            self._stop()  # a run that an earlier host left behind
        self._forget(board[BoardRegister.MEMORY_BYTES])

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """A copy of ``size`` bytes; raises `ValueError` beyond the memory."""
        self._check_bounds(address, size)
        first, end = _words_around(address, size)
        raw = self._link.read(WORD_BYTES * first, end - first)
        inside = np.frombuffer(raw, np.uint8)[address - WORD_BYTES * first :]
        return inside[:size].copy()

    def write(self, address: int, data: npt.NDArray[np.generic] | bytes) -> None:
        """Stores the bytes of ``data``; raises `ValueError` beyond the memory."""
        raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
        self._check_bounds(address, len(raw))
        first, end = _words_around(address, len(raw))
        before = address - WORD_BYTES * first
        after = WORD_BYTES * end - address - len(raw)
        if before:
            raw = self._link.read(WORD_BYTES * first, 1)[:before] + raw
        if after:
            raw += self._link.read(WORD_BYTES * (end - 1), 1)[WORD_BYTES - after :]
        for start, words in _runs(np.frombuffer(raw, "<u4")):
            place = WORD_BYTES * (first + start)
            if words.any():
                self._link.write(place, words.tobytes())
            else:
                self._link.fill(place, words.size)

    def run(
        self,
        insn_addr: int,
        insn_count: int,
        time_limit: float | None = None,
        watched: Sequence[int] = (),
    ) -> RunResult:
        """Runs ``insn_count`` instructions from byte ``insn_addr``; the result does not tell when
        the ``watched`` ones have retired.

        A run that is stopped at ``time_limit``, in seconds, ends with the fault ``timeout`` of the
        instruction that it had reached. Raises `LinkError` if the board stops answering.
        """
        started = time.monotonic()
        self._launch(insn_addr, insn_count)
        while not self._status("done"):
            if time_limit is not None and time.monotonic() > started + time_limit:
                self._stop()
                seconds = time.monotonic() - started
                return RunResult(cycles=None, fault=self._stopped_fault(), seconds=seconds)
            time.sleep(_POLL_SECONDS)
        seconds = time.monotonic() - started
        return RunResult(
            cycles=self._read("CYCLES"),
            fault=self._fault(),
            tokens_left=self._tokens_left(),
            counters=self._counters(),
            seconds=seconds,
        )

    def read_words(self, address: int, count: int) -> list[int]:
        return self._link.read_words(protocol.MACHINE_BASE + address, count)

    def write_words(self, address: int, words: Sequence[int]) -> None:
        self._link.write_words(protocol.MACHINE_BASE + address, words)

    @property
    def resent(self) -> int:
        """How often requests were sent again because bytes were lost on the line."""
        return self._link.resent

    def close(self) -> None:
        self._link.close()

    def _forget(self, memory_bytes: int) -> None:
        """Leaves zeros in base registers, in the scratchpads, and in the device's part of the
        board's ``memory_bytes``."""
        bases = REGISTERS[f"{isa.LIMITED[0].name}_BASE"].offset
        self.write_words(bases, [0] * 2 * len(isa.LIMITED))
        limit = protocol.BOARD_BASE + WORD_BYTES * BoardRegister.MEMORY_LIMIT
        self._link.write_words(limit, [memory_bytes])
        stream = scrub_stream(self.config)
        self._link.write(0, stream.tobytes())
        self.set_limits({})
        fault = self.run(0, len(stream), _STOP_SECONDS).fault
        if fault is not None:
            raise LinkError(f"the machine cannot scrub its scratchpads: {fault}")
        self._link.fill(0, max(self.memory_bytes, stream.nbytes) // WORD_BYTES)
        self._link.write_words(limit, [self.memory_bytes])

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
    """The first word that holds a byte of the range, and the first word behind the range."""
    return address // WORD_BYTES, -(-(address + size) // WORD_BYTES)


def _runs(words: npt.NDArray[np.uint32]) -> list[tuple[int, npt.NDArray[np.uint32]]]:
    """``words`` in parts, each with its position; a long run of zeros is a part by itself."""
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
