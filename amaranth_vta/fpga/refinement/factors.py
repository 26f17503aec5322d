"""Moves short factors into the upper bits of an ECP5's multipliers: `align_factors`.

Yosys sign-extends a factor of fewer than 18 bits, and each copy of the sign takes a wire where
routing is congested. In the upper bits, a factor is padded with zeros below instead, which a
multiplier takes from its own tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amaranth_vta.fpga.netlist import Bit, Cell, uses

# Bits of a factor of a MULT18X18D.
_WIDTH = 18


def align_factors(netlist: dict[str, Any]) -> int:
    """Shift factors into the upper bits of multipliers. Modifies a ``netlist`` in Yosys' format in
    place, with all cells in one module, and returns the number of removed wires to multipliers.

    A signed factor whose upper n + 1 bits are equal is shifted left by n, which multiplies the
    product by 2^n too (FPGA-TN-02205): all its bits move up by n. The upper n bits of the product,
    sign copies, are lost; a multiplier whose readers use them remains unchanged.
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
    """The number of redundant sign bits of a factor; 0 if it is unsigned."""
    bits = [pins[f"{factor}{place}"] for place in range(_WIDTH)]
    if pins[f"SIGNED{factor}"] != ["1"]:
        return 0
    return next((n for n in range(_WIDTH - 1) if bits[-2 - n] != bits[-1]), _WIDTH - 1)
