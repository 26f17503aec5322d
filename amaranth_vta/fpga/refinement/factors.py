"""Puts short factors into the upper bits of an ECP5's multipliers: `align_factors`.

Yosys extends a factor of fewer than 18 bits by copies of its sign, and each copy is a wire to a
part of the chip where wires are scarce. In the upper bits a factor has zeros below it instead, and
those a multiplier gets from its own tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amaranth_vta.fpga.netlist import Bit, Cell, uses

# Bits of a factor of a MULT18X18D.
_WIDTH = 18


def align_factors(netlist: dict[str, Any]) -> int:
    """Shift factors into the upper bits of multipliers. Changes a ``netlist`` as Yosys writes it,
    with all cells in one module, and returns the number of removed wires to multipliers.

    A signed factor whose upper n + 1 bits are equal is multiplied by 2^n, and with it the product
    (FPGA-TN-02205): all its bits move up by n places. The uppermost n, copies of the bit below
    them, are lost; a multiplier with readers of these remains unchanged.
    """
    lost = 0
    for module in netlist["modules"].values():
        used = uses(module)
        for cell in module["cells"].values():
            if cell["type"] == "MULT18X18D":
                lost += _align(cell, used)
    return lost


def _align(cell: Cell, used: Mapping[Bit, int]) -> int:
    pins: dict[str, list[Bit]] = cell["connections"]
    copies = {factor: _copies(pins, factor) for factor in "AB"}
    places = sum(copies.values())
    kept = 2 * _WIDTH - places
    if any(used[bit] for place in range(kept, 2 * _WIDTH) for bit in pins[f"P{place}"]):
        return 0
    for factor, count in copies.items():
        bits = [pins[f"{factor}{place}"][0] for place in range(_WIDTH - count)]
        for place, bit in enumerate(["0"] * count + bits):
            pins[f"{factor}{place}"] = [bit]
    products = [pins[f"P{place}"] for place in range(2 * _WIDTH)]
    for place, product in enumerate(products[kept:] + products[:kept]):
        pins[f"P{place}"] = product
    return places


def _copies(pins: Mapping[str, list[Bit]], factor: str) -> int:
    """How many bits of a signed factor, from the upper end, are as the one below them."""
    bits = [pins[f"{factor}{place}"] for place in range(_WIDTH)]
    if pins[f"SIGNED{factor}"] != ["1"]:
        return 0
    return next((n for n in range(_WIDTH - 1) if bits[-2 - n] != bits[-1]), _WIDTH - 1)
