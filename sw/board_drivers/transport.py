"""The interface to a board's memory and its machine's registers: `Transport`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from amaranth_vta.errors import VtaError
from amaranth_vta.hw.boards import protocol
from amaranth_vta.hw.boards.protocol import BoardRegister
from amaranth_vta.sw.runtime.driver import MismatchError

from .link import PATIENCE_SECONDS, Line, Link, LinkError


class BoardError(VtaError, ValueError):
    """A board is missing, or its memory is too small for a program."""


class Transport(Protocol):
    """Access to a machine and its memory, in 32-bit words.

    Attributes
    ----------
    memory_bytes : size of the memory, whose first byte is at address 0 for these methods
    origin : address of that byte as the machine sees it, a multiple of 4096
    limits_machine : whether `limit` makes the machine's accesses beyond it bus errors
    configuration : `configuration_hash` of the machine; None if only its registers tell
    """

    memory_bytes: int
    origin: int
    limits_machine: bool
    configuration: int | None

    def read(self, address: int, count: int) -> bytes:
        """Read ``count`` words of memory at byte ``address``, a multiple of 4."""
        ...

    def write(self, address: int, data: bytes) -> None:
        """Write ``data``, whole words, to memory at byte ``address``, a multiple of 4."""
        ...

    def fill(self, address: int, count: int) -> None:
        """Write ``count`` zero words to memory at byte ``address``, a multiple of 4."""
        ...

    def read_registers(self, address: int, count: int) -> list[int]:
        """Read ``count`` words of the machine's registers at byte ``address``."""
        ...

    def write_registers(self, address: int, words: Sequence[int]) -> None:
        """Write ``words`` to the machine's registers from byte ``address`` on, in order."""
        ...

    def limit(self, size: int) -> None:
        """Limit the machine to the first ``size`` bytes of the memory, a multiple of 64."""
        ...

    def flush(self) -> None:
        """Make the host's writes to memory visible to the machine."""
        ...

    def invalidate(self) -> None:
        """Make the machine's writes to memory visible to the host."""
        ...

    def close(self) -> None: ...


class SerialTransport:
    """A `Transport` over the serial ``line`` to a board made by ``vta build``.

    Raises `LinkError` if nothing answers within ``patience`` seconds, and `MismatchError` if the
    board speaks another version of the link.
    """

    origin = 0
    limits_machine = True

    def __init__(self, line: Line, patience: float = PATIENCE_SECONDS) -> None:
        self._link = Link(line, patience)
        board = self._link.identify()
        if board[BoardRegister.IDENTITY] != protocol.IDENTITY:
            raise LinkError(f"the device at {line.port} is not a board with this machine")
        if board[BoardRegister.VERSION] != protocol.VERSION:
            raise MismatchError(
                f"the board speaks version {board[BoardRegister.VERSION]} of the link and not "
                f"{protocol.VERSION}: build its bitstream with this version of amaranth-vta"
            )
        self.configuration: int | None = board[BoardRegister.CONFIGURATION]
        self.memory_bytes = board[BoardRegister.MEMORY_BYTES]
        self.clock_hz = board[BoardRegister.CLOCK_HZ]

    def read(self, address: int, count: int) -> bytes:
        return self._link.read(address, count)

    def write(self, address: int, data: bytes) -> None:
        self._link.write(address, data)

    def fill(self, address: int, count: int) -> None:
        self._link.fill(address, count)

    def read_registers(self, address: int, count: int) -> list[int]:
        return self._link.read_words(protocol.MACHINE_BASE + address, count)

    def write_registers(self, address: int, words: Sequence[int]) -> None:
        self._link.write_words(protocol.MACHINE_BASE + address, words)

    def limit(self, size: int) -> None:
        self._link.write_words(BoardRegister.MEMORY_LIMIT.address, [size])

    @property
    def firmware_bytes(self) -> int:
        """Size of the memory for the firmware of the board's processor; 0 if it has none. Raises
        `MismatchError` if the processor needs firmware of another version.
        """
        (value,) = self._link.read_words(BoardRegister.PROCESSOR.address, 1)
        version = value % 256
        if value and version != protocol.PROCESSOR_VERSION:
            raise MismatchError(
                f"the board's processor has version {version} of its address map and not "
                f"{protocol.PROCESSOR_VERSION}: build its bitstream with this version of "
                f"amaranth-vta"
            )
        return value - version

    def start_processor(self, firmware: bytes = b"") -> None:
        """Start the board's processor, which any access of the host stops, after writing
        ``firmware``, in whole words, if given.
        """
        if firmware:
            self._link.write(protocol.FIRMWARE_BASE, firmware)
        self._link.write_words(BoardRegister.PROCESSOR.address, [1])

    def flush(self) -> None:
        """No-op: the board executes requests in order."""

    def invalidate(self) -> None:
        """No-op: every read goes to the board's memory."""

    @property
    def resent(self) -> int:
        """Number of retransmission rounds because bytes were lost on the line."""
        return self._link.resent

    def close(self) -> None:
        self._link.close()


def open_line(port: str) -> Line:
    """The serial port named ``port``, a path or a URL of pyserial; raises `BoardError`."""
    import serial

    try:
        line: Line = serial.serial_for_url(port, baudrate=protocol.BAUD, write_timeout=5)
    except (OSError, ValueError) as error:
        raise BoardError(f"the serial port {port} cannot be opened: {error}") from None
    return line
