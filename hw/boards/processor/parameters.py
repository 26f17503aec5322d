"""Parameters of a board's processor, and the address map of its own part of the board.

Shared by the gateware and the firmware. The rest of the address map, which the processor shares
with the host, is in `amaranth_vta.hw.boards.protocol`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

# The processor's address map: `FIRMWARE_BASE` for the memory of its firmware, which it caches, and
# the following, which it does not: the core caches nothing in the upper half of its addresses.
# Memory and registers that it shares with the host are at other addresses than the host's.
SHARED_BASE = 0x8000_0000
PERIPHERAL_BASE = 0xC000_0000
FLASH_BASE = 0xD000_0000
MACHINE_BASE = 0xE000_0000
BOARD_BASE = 0xF000_0000
# The address bits that distinguish all of these.
MAP_BITS = slice(28, 32)
# Bytes from the host that wait for the processor.
RECEIVED_BYTES = 64


class Peripheral(IntEnum):
    """Registers of the processor, as words from `PERIPHERAL_BASE`."""

    # A read removes a byte from the queue of received ones and returns it with `RECEIVED` set, or 0
    # if there is none; with `LOST` set if the queue overflowed since the last read.
    RECEIVE = 0
    # A write sends a byte; reads as 1 while the previous byte waits to be sent.
    SEND = 1
    # Clock cycles since power-up. A read of the lower word latches the upper one.
    CYCLES_LOW = 2
    CYCLES_HIGH = 3


# Flags of `Peripheral.RECEIVE`.
RECEIVED = 1 << 8
LOST = 1 << 9


class Interrupt(IntEnum):
    """Interrupt lines of the processor."""

    MACHINE = 0


@dataclass(frozen=True)
class SoftProcessor:
    """A processor on the FPGA, with ``memory_bytes`` of block RAM for its firmware. The memory
    contains ``firmware`` after power-up; a simulated board loads its firmware instead. With
    ``has_flash`` it reads the flash memory that configures the FPGA.
    """

    memory_bytes: int
    firmware: bytes = b""
    has_flash: bool = False
