"""Gowin's chips, placed and routed by nextpnr-himbaechel: `by_himbaechel`."""

from typing import Any

_NEXTPNR = "nextpnr-himbaechel-gowin"
_PLACE_AND_ROUTE = """
{{invoke_tool("nextpnr-himbaechel-gowin")}}
    {{quiet("--quiet")}}
    {{get_override("nextpnr_opts")|options}}
    --log {{name}}.tim
    --device {{platform.part}}
    --vopt family={{platform.family}}
    --vopt cst={{name}}.cst
    --freq {{platform.default_clk_frequency / 1000000}}
    --json {{name}}.syn.json
"""


def by_himbaechel(platform: type[Any]) -> type[Any]:
    """The ``platform`` of a board with one of Gowin's chips, with the place and route of today.

    Amaranth 0.5 calls nextpnr-gowin, which is no longer part of nextpnr, and had other options. The
    clock that is asked for is the oscillator's. Whoever builds says by the option ``--write
    {name}.pnr.json`` where the placed design goes, which gowin_pack reads.
    """

    class HimbaechelPlatform(platform):
        @property
        def required_tools(self) -> list[str]:
            return ["yosys", _NEXTPNR, "gowin_pack"]

        @property
        def command_templates(self) -> list[str]:
            synthesize, _, pack = self._apicula_command_templates
            return [synthesize, _PLACE_AND_ROUTE, pack]

    return HimbaechelPlatform
