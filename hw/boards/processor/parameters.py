"""Parameters of a board's processor, and the address map of its own part of the board.

Shared by the gateware and the firmware. The rest of the address map, which the processor shares
with the host, is in `amaranth_vta.hw.boards.protocol`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

# Registers that only the processor can access: its peripherals, and the reader of the flash memory.
PERIPHERAL_BASE = 0x6000_0000
FLASH_BASE = 0x7000_0000
# The address bits that distinguish them, and the memory of the firmware, from each other.
OWN_BITS = slice(28, 30)
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
