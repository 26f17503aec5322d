"""Synthesis and placement options per chip family, for tools from PyPI: `FLOWS`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# The step of Yosys' synthesis for ECP5 and Gowin that maps adders to carry chains.
GATES = "map_gates"
# Hides wires such as ``data[0]``, copies of the elements of an array: if ABC gives bit 0 of the
# array the same name, an assertion in Yosys 0.70 fails. `verilog` writes other names for them.
_HIDE_ELEMENTS = "rename -hide */w:*[*"
# Adders of up to 12 bits are built from LUTs: entering and leaving a carry chain takes up to four
# LUTs, and logic around an adder cannot share LUTs with a chain. Packed, 4×4 without `REQUANTIZE`
# took 11,327 LUTs of an ECP5 instead of 11,921; 11,757 with a limit of 8 bits, and 11,349 with
# 16.
_NARROW = "t:$alu r:Y_WIDTH<=12 %i"
# Except up to four cells after a block RAM, where carry chains cost 140 more LUTs of an ECP5:
# synthesis does not know that block RAM outputs arrive late, and would build its slowest adders
# there.
_NOT_BEHIND_BLOCK_RAM = "t:DP16KD %co9 %d"


@dataclass(frozen=True)
class Flow:
    """Synthesis and placement for the chips of a ``family``, whose names begin with ``chips``.

    ``command`` is the Yosys command; if it is empty, Amaranth's platform provides one. ``adders``
    selects the adders that are built from LUTs before the step `GATES`, and ``suffix`` is the
    extension of a bitstream. With ``refined``, `refine` post-processes the netlist. ``placer`` are
    options of nextpnr.
    """

    family: str
    chips: str
    suffix: str
    command: str = ""
    adders: str = ""
    refined: bool = False
    placer: str = ""

    @property
    def narrow_adders(self) -> str:
        """The Yosys command that maps the selected adders to LUTs."""
        return f"techmap -map +/techmap.v {self.adders}"

    def before_gates(self, top: str) -> str:
        """The Yosys commands for the module ``top`` before the step `GATES`."""
        return f"{self.command} -top {top} -run begin:{GATES}; {self.narrow_adders}"

    def commands(self, top: str) -> str:
        """All Yosys commands for the module ``top``."""
        return f"{self.before_gates(top)}; {self.command} -top {top} -run {GATES}:"

    def overrides(self, top: str, first: Sequence[str]) -> dict[str, str]:
        """Overrides of Amaranth's synthesis script for the module ``top``. The script then begins
        with the commands ``first``.
        """
        begin = "; ".join((_HIDE_ELEMENTS, *first))
        if not self.command:
            return {"script_after_read": begin}
        options = self.command.partition(" ")[2]
        return {
            "script_after_read": f"{begin}; {self.before_gates(top)}",
            "synth_opts": f"{options} -run {GATES}:",
        }


# Weight of critical paths in placement; nextpnr's default is 10. With the same seed a single 4×4
# machine reaches 90.0 MHz at speed grade 8 of an ECP5 instead of 82.3, and 69.9 at grade 6 instead
# of 64.9; boards gain little, 0.1 MHz on the Colorlight i5, 0.2 on the ULX3S.
_TIMING = "--placer-heap-timingweight 30"

# By family. Wide functions use LUTs only. With LUT multiplexers, whose inputs each take a LUT,
# synthesis builds faster functions from more LUTs: 14,099 of an ECP5 for 4×4 without `REQUANTIZE`,
# not 13,748. On Gowin chips they also constrain placement.
FLOWS = {
    flow.family: flow
    for flow in (
        Flow(
            *("ecp5", "LFE5", "bit", "synth_ecp5 -nowidelut"),
            adders=f"{_NARROW} {_NOT_BEHIND_BLOCK_RAM}",
            refined=True,
            placer=_TIMING,
        ),
        Flow("gowin", "GW2A", "fs", "synth_gowin -family gw2a -nowidelut", adders=_NARROW),
        Flow("ice40", "iCE40", "bit"),
    )
}


def flow_of(chip: str) -> Flow:
    """The flow for a chip, given its name, such as ``LFE5U-25F-6BG381C``."""
    return next(flow for flow in FLOWS.values() if chip.startswith(flow.chips))
