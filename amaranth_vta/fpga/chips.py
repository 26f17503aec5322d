"""Resources of FPGAs, as limits for configurations: `CHIPS`."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth_vta.hw.system.parameters import SystemConfig

from .area import Area
from .system_area import system_area

RESOURCES = ("lut", "ff", "dsp", "bram36")


@dataclass(frozen=True)
class Chip:
    """Resources of an FPGA of a ``family`` of `estimate_area`: LUTs (with six inputs on xc7, four
    on ecp5), flip-flops, multipliers, block RAMs in units of 36 kbit, and a clock in MHz. The
    machine named in ``routed`` reaches that clock; it is an assumption if ``routed`` is empty.
    ``nextpnr`` are the options for place and route, empty if only the vendor's tools support the
    chip.
    """

    name: str
    family: str
    lut: int
    ff: int
    dsp: int
    bram36: float
    clock_mhz: float
    routed: str = ""
    nextpnr: str = ""

    def area_of(self, system: SystemConfig) -> Area:
        """The estimated area of the machines of ``system`` on this chip, by `system_area`."""
        return system_area(system, self.family, self.dsp)

    def share(self, area: Area) -> float:
        """The fraction of the chip that ``area`` takes, of the resource with the highest
        utilization.
        """
        return max(getattr(area, name) / getattr(self, name) for name in RESOURCES)


# From the vendors' data sheets: Xilinx DS190 and DS180, Lattice FPGA-DS-02012. ECP5 clocks were
# reached by bitstreams at speed grade 6, rounded down.
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("xc7z010", "xc7", 17_600, 35_200, 80, 60, 100),
        Chip("xc7z020", "xc7", 53_200, 106_400, 220, 140, 100),
        Chip("xc7z045", "xc7", 218_600, 437_200, 900, 545, 100),
        Chip("xc7a35t", "xc7", 20_800, 41_600, 90, 50, 100),
        Chip("xc7a100t", "xc7", 63_400, 126_800, 240, 135, 100),
        Chip(
            *("ecp5-25f", "ecp5", 24_288, 24_288, 28, 28, 58),
            routed="ecp5-25f on the Colorlight i5",
            nextpnr="--25k --package CABGA381",
        ),
        Chip(
            *("ecp5-45f", "ecp5", 43_848, 43_848, 72, 54, 56),
            nextpnr="--45k --package CABGA381",
        ),
        Chip(
            *("ecp5-85f", "ecp5", 83_640, 83_640, 156, 104, 56),
            routed="tiny on the ULX3S",
            nextpnr="--85k --package CABGA381",
        ),
    )
}
