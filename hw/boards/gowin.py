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
    """The ``platform`` of a board with a Gowin chip, adapted to nextpnr-himbaechel.

    Amaranth 0.5 calls nextpnr-gowin, which was removed from nextpnr and had different options. The
    target frequency is the oscillator's. The caller passes ``--write {name}.pnr.json`` to write the
    placed design, which gowin_pack reads.
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
