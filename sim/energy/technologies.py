"""Energies per event, by technology, and their sources; docs/energy.md explains them.

Each table gives the energy of integer additions and multiplications of 8 and 32 bits, of 64-bit
accesses to memories of several sizes, and of DRAM per 64 bits. Between the given points, energies
are interpolated: additions linearly in their width, multiplications linearly in the product of
their widths, and SRAMs by a power law in their size; smaller SRAMs by the square root of their
size.

`45nm` and `7nm` are published tables. The others are derived from them and from published figures:
factors between processes (`scaling`), the ratio of FPGAs to ASICs, and data sheets of memories.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from .energies import Energy
from .scaling import Process, energy_scaling, power_law

# Width of the given accesses to SRAM and DRAM.
_ACCESS_BYTES = 8
_ACCESS_BITS = 8 * _ACCESS_BYTES
_KIB = 1024
_EXACT = Energy(1.0, 1.0, 1.0)
_NONE = Energy()
# Scratchpads differ from the published SRAMs in width, ports and banks: a wide word costs less per
# bit than a 64-bit word, a second port and banking cost more. The factors are our assumption.
_SRAM_BAND = Energy(0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Technology:
    """Typical energies per event in picojoules, from ``source``, and their bands.

    ``add`` and ``multiply``
        of 8 and of 32 bits.
    ``sram``
        pairs of a size in bytes and the energy of a 64-bit access, in order of size.
    ``dram``
        per 64 bits; it includes the activation of pages if ``activation`` is zero.
    ``activation``
        to open and close a page of `DRAM_PAGE_BYTES` of DRAM.
    ``arithmetic_band`` and ``sram_band``
        relative to the typical energies.
    """

    name: str
    source: str
    add: tuple[float, float]
    multiply: tuple[float, float]
    sram: tuple[tuple[int, float], ...]
    dram: Energy
    arithmetic_band: Energy = _EXACT
    sram_band: Energy = _SRAM_BAND
    activation: Energy = _NONE

    def addition(self, bits: float) -> Energy:
        """The energy of an addition of ``bits``."""
        narrow, wide = self.add
        if bits <= 8:
            return self.arithmetic_band * (narrow * bits / 8)
        return self.arithmetic_band * (narrow + (wide - narrow) * (bits - 8) / 24)

    def multiplication(self, bits: float, other_bits: float) -> Energy:
        """The energy of a multiplication of ``bits`` by ``other_bits``."""
        narrow, wide = self.multiply
        area = bits * other_bits
        if area <= 64:
            return self.arithmetic_band * (narrow * area / 64)
        return self.arithmetic_band * (narrow + (wide - narrow) * (area - 64) / (1024 - 64))

    def sram_byte(self, size: int) -> Energy:
        """The energy to read or write a byte of a scratchpad of ``size`` bytes."""
        first = self.sram[0]
        if size <= first[0]:
            access = first[1] * (size / first[0]) ** 0.5
        else:
            low, high = next(
                (pair for pair in pairwise(self.sram) if size <= pair[1][0]),
                self.sram[-2:],
            )
            access = power_law(size, low, high)
        return self.sram_band * (access / _ACCESS_BYTES)

    @property
    def dram_byte(self) -> Energy:
        """The energy to transfer a byte to or from DRAM."""
        return self.dram * (1 / _ACCESS_BYTES)


_45NM = Technology(
    "45nm",
    "M. Horowitz, Computing's energy problem, ISSCC 2014 (0.9 V)",
    add=(0.03, 0.1),
    multiply=(0.2, 3.1),
    sram=((8 * _KIB, 10.0), (32 * _KIB, 20.0), (1024 * _KIB, 100.0)),
    dram=Energy(1300.0, 1950.0, 2600.0),
)
# DRAM: HBM2 at the low end, DDR otherwise.
_7NM = Technology(
    "7nm",
    "N. Jouppi et al., Ten lessons from three generations shaped Google's TPUv4i, "
    "ISCA 2021, table 2",
    add=(0.007, 0.03),
    multiply=(0.07, 1.48),
    sram=((8 * _KIB, 7.5), (32 * _KIB, 8.5), (1024 * _KIB, 14.0)),
    dram=Energy(250.0, 1300.0, 1300.0),
)

_45NM_PROCESS = Process(45, 0.9)
_EQUATIONS = "equations of A. Stillmaker and B. Baas, Integration 58 (2017)"


def _derived(
    name: str,
    source: str,
    arithmetic: Energy,
    sram: tuple[tuple[int, float], ...],
    sram_band: Energy,
    dram: Energy,
    activation: Energy = _NONE,
) -> Technology:
    """A technology whose arithmetic takes ``arithmetic`` times the energies of 45 nm."""
    factor = arithmetic.typical
    return Technology(
        name,
        source,
        (_45NM.add[0] * factor, _45NM.add[1] * factor),
        (_45NM.multiply[0] * factor, _45NM.multiply[1] * factor),
        sram,
        dram,
        arithmetic.band,
        sram_band,
        activation,
    )


# SRAMs do not follow the equations: between 45 nm and 7 nm, small ones fall by a quarter and large
# ones by seven eighths. DRAM is another chip, so that the energies do not depend on the process.
_28NM = _derived(
    "28nm",
    f"arithmetic of 45nm by {_EQUATIONS}; SRAM between 45nm and 7nm; DRAM of 45nm",
    energy_scaling(_45NM_PROCESS, Process(28, 0.9)),
    tuple(
        (size, power_law(28, (45, old), (7, new)))
        for (size, old), (_, new) in zip(_45NM.sram, _7NM.sram, strict=True)
    ),
    _SRAM_BAND,
    _45NM.dram,
)


# I. Kuon and J. Rose, Measuring the gap between FPGAs and ASICs, IEEE TCAD 26 (2007): ratio of
# dynamic power at equal frequency in 90 nm, of circuits with multipliers and memories. Low is the
# favorable end, high the ratio for circuits of logic alone.
_FPGA_TO_ASIC = Energy(4.6, 7.1, 14.0)


def _block_ram(milliwatts: float, ports: int, bits: int) -> float:
    """The energy of 64 bits of a memory that is accessed through all its ``ports`` of ``bits`` in
    each cycle of 300 MHz.
    """
    return milliwatts / ports / 300 * 1000 / bits * _ACCESS_BITS


# Xilinx DS512 (v6.1, 2011), table 41: dynamic power of memories of block RAMs of Virtex-5, at 50 %
# toggle rate and 50 % writes, by the vendor's estimator. Typical is a memory of 2048 words, about
# as deep as scratchpads, of 36 bits. Low enables one block per access of 8192 words, in the
# operating mode that takes least; high enables all 32 blocks.
_VIRTEX5_BLOCK_RAM = Energy(_block_ram(38, 2, 72), _block_ram(39, 2, 36), _block_ram(74, 1, 72))
_VIRTEX5_PROCESS = Process(65, 1.0)
_BLOCK_BYTES = 4 * _KIB


def _burst(milliamperes: float, volts: float, megabits: float) -> float:
    """The energy of 64 bits of a DRAM at ``megabits`` per second."""
    return milliamperes * volts / megabits * 1000 * _ACCESS_BITS


# At a fifth of the peak bandwidth, a bit of DDR3 takes 2.3 times the energy: K. Malladi et al.,
# Towards energy-proportional datacenter memory with mobile DRAM, ISCA 2012. Typical is a module of
# DDR3-1333 at peak bandwidth, 432 mW per GB/s, as shown by Intel and Micron at IDF 2011. Low is the
# current IDD4R of a DDR3-1600 chip of 8 bits (Micron MT41J512M8), without activation of pages,
# termination and I/O.
_DDR3_MODULE = 432.0 * _ACCESS_BYTES
_DDR3 = Energy(_burst(157, 1.5, 8 * 1600), _DDR3_MODULE, 2.3 * _DDR3_MODULE)
# Burst current ICC4 of 130 mA of a PC133 chip of 16 bits (Samsung K4S561632E-75), and at a fifth of
# the bandwidth the same with more of its standby current ICC3N of 25 mA. Low is a module of 64 bits
# (Infineon HYS64V4200GDL-7.5). All without I/O.
_SDRAM = Energy(
    _burst(440, 3.3, 64 * 133),
    _burst(130, 3.3, 16 * 133),
    _burst(130 - 25 + 25 * 5, 3.3, 16 * 133),
)


class _Currents(NamedTuple):
    """Currents of a chip in milliamperes: cycling the rows of one bank, and in standby with a row
    open and with none.
    """

    cycling: float
    active: float
    precharged: float


def _activation(currents: _Currents, active_ns: float, precharge_ns: float, volts: float) -> float:
    """The energy to open and close a page of one chip, in picojoules: of a row cycle of the minimum
    length, without the standby current, by Micron TN-41-01.
    """
    cycle_ns = active_ns + precharge_ns
    standby = currents.active * active_ns + currents.precharged * precharge_ns
    return (currents.cycling * cycle_ns - standby) * volts


# Two chips have pages of `DRAM_PAGE_BYTES` together. IDD0, IDD3N, IDD2N, and tRAS and tRP of DDR3
# chips of 8 bits: low and typical is a DDR3-1600 chip of 4 Gbit (Micron MT41J512M8, die revisions E
# and J), high is one of 2 Gbit (Micron, speed grade -125E).
_DDR3_PAGE = 2 * _activation(_Currents(55, 38, 32), 35, 13.75, 1.5)
_DDR3_ACTIVATION = Energy(
    _DDR3_PAGE, _DDR3_PAGE, 2 * _activation(_Currents(95, 45, 42), 35, 12.5, 1.5)
)
# The PC133 chip: ICC1, ICC3N, ICC2N, and tRAS and tRP of 3-3-3 chips. ICC1 includes a word of 16
# bits per row cycle, which takes ICC4 - ICC3N for a cycle of 7.5 ns; high is with that word. Low
# opens the page of one chip, which is half as large.
_SDRAM_ROW_CYCLE = _activation(_Currents(90, 25, 20), 45, 20, 3.3)
_SDRAM_ROW = _SDRAM_ROW_CYCLE - (130 - 25) * 3.3 * 7.5
_SDRAM_ACTIVATION = Energy(_SDRAM_ROW, 2 * _SDRAM_ROW, 2 * _SDRAM_ROW_CYCLE)


def _fpga(name: str, process: Process, memory: str, dram: Energy, activation: Energy) -> Technology:
    """An FPGA in ``process`` on a board with ``dram``."""
    block_ram = _VIRTEX5_BLOCK_RAM * energy_scaling(_VIRTEX5_PROCESS, process)
    # Any number of blocks costs the same per bit; wires between blocks are not included.
    sram = ((_BLOCK_BYTES, block_ram.typical), (1024 * _KIB, block_ram.typical))
    return _derived(
        name,
        f"arithmetic of 45nm by {_EQUATIONS}, times the ratio of FPGAs to ASICs of I. Kuon and "
        "J. Rose, TCAD 26 (2007); block RAM of Virtex-5 from Xilinx DS512 by the same equations; "
        f"{memory}",
        energy_scaling(_45NM_PROCESS, process) * _FPGA_TO_ASIC,
        sram,
        block_ram.band,
        dram,
        activation,
    )


TECHNOLOGIES = {
    item.name: item
    for item in (
        _45NM,
        _28NM,
        _7NM,
        _fpga(
            "xc7",
            Process(28, 1.0),
            "DDR3 as shown at IDF 2011, its activations from data sheets",
            _DDR3,
            _DDR3_ACTIVATION,
        ),
        _fpga("ecp5", Process(40, 1.1), "SDRAM from data sheets", _SDRAM, _SDRAM_ACTIVATION),
    )
}
