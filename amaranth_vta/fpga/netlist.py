"""Helpers for netlists in Yosys' JSON format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

# A bit of a net: its number, or a constant.
Bit = int | str
Cell = dict[str, Any]


def outputs(cell: Cell) -> list[Bit]:
    """The bits that a ``cell`` drives."""
    return [
        bit
        for port, bits in cell["connections"].items()
        if cell["port_directions"][port] == "output"
        for bit in bits
    ]


def uses(module: Mapping[str, Any]) -> Counter[Bit]:
    """Fan-out of each bit: the number of cell inputs and ``module`` outputs that it drives."""
    ends = [port["bits"] for port in module["ports"].values() if port["direction"] != "input"]
    for cell in module["cells"].values():
        ends += [
            bits
            for port, bits in cell["connections"].items()
            if cell["port_directions"][port] != "output"
        ]
    return Counter(bit for bits in ends for bit in bits)
