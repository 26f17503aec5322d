"""Published energies per event, by technology.

Each table gives the energy of integer additions and multiplications of 8 and 32 bits, of 64-bit
accesses to SRAMs of three sizes, and of DRAM per 64 bits. Between the published points, energies
are interpolated: additions linearly in their width, multiplications linearly in the product of
their widths, and SRAMs by a power law in their size; smaller SRAMs by the square root of their
size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import log

# Width of the published accesses to SRAM and DRAM, in bytes.
_ACCESS_BYTES = 8
# Scratchpads differ from the published SRAMs in width, ports and banks: a wide word costs less per
# bit than a 64-bit word, a second port and banking cost more. The factors are our assumption.
_SRAM_BAND = (0.5, 2.0)


@dataclass(frozen=True)
class Energy:
    """An energy in picojoules: the ``typical`` one, and the band from ``low`` to ``high``."""

    low: float = 0.0
    typical: float = 0.0
    high: float = 0.0

    def __add__(self, other: Energy) -> Energy:
        return Energy(self.low + other.low, self.typical + other.typical, self.high + other.high)

    def __mul__(self, factor: float) -> Energy:
        return Energy(self.low * factor, self.typical * factor, self.high * factor)


def summed(energies: Iterable[Energy]) -> Energy:
    """The sum of ``energies``; bands add up, since their errors have common causes."""
    return sum(energies, Energy())


@dataclass(frozen=True)
class Technology:
    """Energies per event in picojoules, from ``source``.

    ``add`` and ``multiply``
        of 8 and of 32 bits.
    ``sram``
        pairs of a size in bytes and the energy of a 64-bit access, in order of size.
    ``dram``
        per 64 bits, activation of pages included.
    """

    name: str
    source: str
    add: tuple[float, float]
    multiply: tuple[float, float]
    sram: tuple[tuple[int, float], ...]
    dram: Energy

    def addition(self, bits: float) -> float:
        """The energy of an addition of ``bits``."""
        narrow, wide = self.add
        if bits <= 8:
            return narrow * bits / 8
        return narrow + (wide - narrow) * (bits - 8) / 24

    def multiplication(self, bits: float, other_bits: float) -> float:
        """The energy of a multiplication of ``bits`` by ``other_bits``."""
        narrow, wide = self.multiply
        area = bits * other_bits
        if area <= 64:
            return narrow * area / 64
        return narrow + (wide - narrow) * (area - 64) / (1024 - 64)

    def sram_byte(self, size: int) -> Energy:
        """The energy to read or write a byte of a scratchpad of ``size`` bytes."""
        first = self.sram[0]
        if size <= first[0]:
            access = first[1] * (size / first[0]) ** 0.5
        else:
            (low, at_low), (high, at_high) = next(
                (pair for pair in pairwise(self.sram) if size <= pair[1][0]),
                self.sram[-2:],
            )
            access = at_low * (at_high / at_low) ** (log(size / low) / log(high / low))
        byte = access / _ACCESS_BYTES
        return Energy(byte * _SRAM_BAND[0], byte, byte * _SRAM_BAND[1])

    @property
    def dram_byte(self) -> Energy:
        """The energy to transfer a byte to or from DRAM."""
        return self.dram * (1 / _ACCESS_BYTES)


_KIB = 1024

TECHNOLOGIES = {
    item.name: item
    for item in (
        Technology(
            "45nm",
            "M. Horowitz, Computing's energy problem, ISSCC 2014 (0.9 V)",
            add=(0.03, 0.1),
            multiply=(0.2, 3.1),
            sram=((8 * _KIB, 10.0), (32 * _KIB, 20.0), (1024 * _KIB, 100.0)),
            dram=Energy(1300.0, 1950.0, 2600.0),
        ),
        # DRAM: HBM2 at the low end, DDR otherwise.
        Technology(
            "7nm",
            "N. Jouppi et al., Ten lessons from three generations shaped Google's TPUv4i, "
            "ISCA 2021, table 2",
            add=(0.007, 0.03),
            multiply=(0.07, 1.48),
            sram=((8 * _KIB, 7.5), (32 * _KIB, 8.5), (1024 * _KIB, 14.0)),
            dram=Energy(250.0, 1300.0, 1300.0),
        ),
    )
}
