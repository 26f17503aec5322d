"""Commands, timing and geometry of SDRAM chips: `SdramChip`."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from amaranth.lib import enum

WORD_BITS = 16
WORD_BYTES = WORD_BITS // 8
# The address bit that selects all banks in a PRECHARGE.
ALL_BANKS = 10
# Number of refreshes after power-up before the mode is set.
FIRST_REFRESHES = 8


class SdramCommand(enum.Enum, shape=3):
    """Pins ras, cas and we, from the lowest bit up; 1 means asserted.

    As in JEDEC Standard 21-C, section 3.11.5.
    """

    NOP = 0b000
    ACTIVATE = 0b001
    READ = 0b010
    REFRESH = 0b011
    PRECHARGE = 0b101
    WRITE = 0b110
    MODE = 0b111


@dataclass(frozen=True)
class SdramTiming:
    """Minimum cycles between commands, with the names used in data sheets.

    ``refresh`` is the maximum average interval between refreshes, and ``power_up`` the minimum
    before the first command.
    """

    cas: int
    wr: int
    mrd: int
    rcd: int
    ras: int
    rp: int
    rfc: int
    refresh: int
    power_up: int


@dataclass(frozen=True)
class SdramChip:
    """A chip with words of 16 bits, or the used part of a chip.

    ``row_bits``, ``column_bits`` and ``bank_bits`` are address widths. ``cas``, ``wr`` and ``mrd``
    are in cycles, ``rcd``, ``ras``, ``rp`` and ``rfc`` in ns; each row is refreshed once per
    ``refresh_ms``.
    """

    row_bits: int
    column_bits: int
    bank_bits: int
    cas: int
    wr: int
    mrd: int
    rcd: float
    ras: float
    rp: float
    rfc: float
    refresh_ms: float
    power_up_us: float

    @property
    def bytes(self) -> int:
        """Size of the memory in bytes."""
        return WORD_BYTES << (self.row_bits + self.column_bits + self.bank_bits)

    def timing(self, clock_hz: int) -> SdramTiming:
        """Timing in cycles of a clock."""

        def cycles(ns: float) -> int:
            return ceil(ns * clock_hz / 1e9)

        return SdramTiming(
            cas=self.cas,
            wr=self.wr,
            mrd=self.mrd,
            rcd=cycles(self.rcd),
            ras=cycles(self.ras),
            rp=cycles(self.rp),
            rfc=cycles(self.rfc),
            refresh=int(self.refresh_ms * clock_hz / 1e3) >> self.row_bits,
            power_up=cycles(1e3 * self.power_up_us),
        )
