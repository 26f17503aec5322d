"""The host link of a board: frames on a serial line, and the address map of their accesses.

Shared by the gateware (`amaranth_vta.hw.boards.link`) and the host. Numbers are little-endian.

A request::

    REQUEST_START  sequence  command  words  address (4 bytes)  words x 4 bytes  CRC (4 bytes)

where only WRITE and FILL have words after the address. Its reply::

    REPLY_START  sequence  words  words x 4 bytes  status  CRC (4 bytes)

The CRC is CRC-32 as in Ethernet and zlib, over everything after the start byte. The board silently
drops a request with a wrong checksum. Requests are executed in the order of their sequence numbers,
each one once. A request that was executed before is answered again (a READ reads again); a request
ahead of its turn is answered `Status.OUT_OF_ORDER`, so that the host resends the missing ones.
IDENTIFY is executed with any number, and later numbers continue from it.

Flow control: the board buffers `RECEIVE_BYTES` of unanswered requests; no byte is lost as long as
the host has at most this many in flight. The line is 8N1.
"""

from __future__ import annotations

from enum import IntEnum
from zlib import crc32

from amaranth_vta.hw.config import Config

REQUEST_START = 0xA5
REPLY_START = 0x5A
# Bytes after the start byte: sequence, command, words and address of a request; sequence and words
# of a reply.
REQUEST_HEADER_BYTES = 7
REPLY_HEADER_BYTES = 2
CHECKSUM_BYTES = 4
WORD_BYTES = 4
MAX_WORDS = 64
RECEIVE_BYTES = 2048
BAUD = 1_000_000

IDENTITY = int.from_bytes(b"VTAB", "little")
VERSION = 1
# Version of the processor's address map, for which the host builds firmware: at most 255.
PROCESSOR_VERSION = 1


class Command(IntEnum):
    """Commands of a request."""

    # Reads the board's first `IDENTIFY_WORDS` registers.
    IDENTIFY = 0
    READ = 1
    WRITE = 2
    # Has two words: a value, and the number of times it is written.
    FILL = 3


class Status(IntEnum):
    """Outcome of a request."""

    DONE = 0
    OUT_OF_ORDER = 1
    # An unknown command, a wrong number of words, or an unmapped address.
    REFUSED = 2


# Address map: memory from byte address 0, the memory of the processor's firmware, the machine's
# registers, and the board's registers.
FIRMWARE_BASE = 0x4000_0000
MACHINE_BASE = 0x8000_0000
BOARD_BASE = 0xC000_0000


class BoardRegister(IntEnum):
    """Registers of the board, as words from `BOARD_BASE`. All but the last two are read-only."""

    IDENTITY = 0
    VERSION = 1
    CONFIGURATION = 2  # `configuration_hash` of the machine
    MEMORY_BYTES = 3
    CLOCK_HZ = 4
    DROPPED = 5  # requests dropped since power-up: wrong checksum, incomplete, or too long
    # Accesses of the machine from this byte address on are bus errors; a multiple of 64.
    MEMORY_LIMIT = 6
    # Bytes of memory for the firmware, a multiple of 256, plus `PROCESSOR_VERSION`; 0 without a
    # processor. A write starts the processor at the beginning of its firmware; every access of the
    # host stops it.
    PROCESSOR = 7

    @property
    def address(self) -> int:
        """Byte address of the register."""
        return BOARD_BASE + WORD_BYTES * self


IDENTIFY_WORDS = 6


def configuration_hash(config: Config) -> int:
    """CRC-32 of the JSON text of ``config``: boards with equal hashes run the same programs."""
    return crc32(config.to_json().encode())
