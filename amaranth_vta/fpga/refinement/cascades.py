"""Connects DSP slices of the 7-series over dedicated cascade wires: `join_cascades`.

Yosys uses the cascade only for chains that begin without an addition; in all others it routes the
result of one slice to the addend of the next over ordinary wires.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, count
from typing import Any

from amaranth_vta.fpga.netlist import Bit, Cell, uses

_WIDTH = 48
# OPMODE bits from this index on select a slice's addend: port C, or its neighbour's result.
_PLACE = 4
_ADDEND, _CASCADE = ["1", "1", "0"], ["1", "0", "0"]


def join_cascades(netlist: dict[str, Any]) -> None:
    """Move sums between neighbouring DSP slices onto the cascade. Modifies a ``netlist`` in Yosys'
    format in place.

    A slice whose addend is the result of another slice takes all 48 bits of it through PCIN.
    Conditions: the result has no other readers, the addend is its lowest bits, and no higher bit of
    the slice's own result is used.
    """
    for module in netlist["modules"].values():
        slices = [cell for cell in module["cells"].values() if cell["type"] == "DSP48E1"]
        givers = {cell["connections"]["P"][0]: cell for cell in slices}
        used = uses(module)
        numbers = _unused(module)
        for cell in slices:
            giver = givers.get(cell["connections"]["C"][0])
            if giver is not None and _joins(giver, cell, used):
                pins, wires = cell["connections"], [next(numbers) for _ in range(_WIDTH)]
                giver["port_directions"]["PCOUT"] = "output"
                giver["connections"]["PCOUT"] = pins["PCIN"] = wires
                pins["C"] = ["0"] * _WIDTH
                pins["OPMODE"][_PLACE:] = _CASCADE


def _unused(module: Mapping[str, Any]) -> Iterator[int]:
    """Unused net numbers of the ``module``, ascending."""
    groups = [
        *(port["bits"] for port in module["ports"].values()),
        *(net["bits"] for net in module["netnames"].values()),
        *(bits for cell in module["cells"].values() for bits in cell["connections"].values()),
    ]
    return count(1 + max((bit for bit in chain(*groups) if isinstance(bit, int)), default=1))


def _joins(giver: Cell, cell: Cell, used: Mapping[Bit, int]) -> bool:
    """Whether ``cell`` can take the result of ``giver`` through the cascade."""
    pins, given = cell["connections"], giver["connections"]["P"]
    if pins["OPMODE"][_PLACE:] != _ADDEND or int(str(cell["parameters"]["CREG"]), 2):
        return False
    if any(used[bit] != pins["C"].count(bit) for bit in given):
        return False
    most = 1 + max(place for place, bit in enumerate(pins["P"]) if used[bit])
    return bool(pins["C"][:most] == given[:most])
