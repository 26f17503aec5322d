"""Chains of DSP slices, connected by cascade wires where that changes nothing.

The results of connected slices are compared in tests/sim/machine/rtl/test_dot_products.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from amaranth_vta.fpga.refinement.cascades import join_cascades

Netlist = dict[str, Any]
WIDTH, ADDED = 48, 34
ADDEND, CASCADE = list("1010110"), list("1010100")


def dsp_slice(addend: list[Any], first: int) -> dict[str, Any]:
    """A slice that adds a product to ``addend``; its result bits are numbered from ``first`` on."""
    pins = {
        "C": addend,
        "OPMODE": list(ADDEND),
        "PCIN": ["0"] * WIDTH,
        "P": list(range(first, first + WIDTH)),
    }
    directions = {pin: "output" if pin == "P" else "input" for pin in pins}
    parameters = {"CREG": "0" * 32}
    cell = {"type": "DSP48E1", "parameters": parameters}
    return cell | {"port_directions": directions, "connections": pins}


def chain(output: list[int]) -> Netlist:
    """Two slices: the second adds the low `ADDED` bits of the first one's result, sign-extended.
    ``output`` are the bits of the output port.
    """
    first = dsp_slice(["1"] * 8 + ["0"] * 40, 100)
    given = first["connections"]["P"]
    second = dsp_slice(given[:ADDED] + [given[ADDED - 1]] * (WIDTH - ADDED), 200)
    ports = {"o": {"direction": "output", "bits": output}}
    module = {"ports": ports, "netnames": {"n": {"bits": [900]}}}
    return {"modules": {"vta": module | {"cells": {"first": first, "second": second}}}}


def slices(design: Netlist) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    cells = design["modules"]["vta"]["cells"]
    return cells["first"]["connections"], cells["second"]["connections"]


def test_a_sum_goes_to_the_neighbour() -> None:
    design = chain(list(range(200, 234)))
    join_cascades(design)
    first, second = slices(design)
    assert second["OPMODE"] == CASCADE
    assert second["C"] == ["0"] * WIDTH
    # Nets without other users.
    assert first["PCOUT"] == second["PCIN"] == list(range(901, 901 + WIDTH))
    assert (first["OPMODE"], first["PCIN"]) == (ADDEND, ["0"] * WIDTH)
    assert design["modules"]["vta"]["cells"]["first"]["port_directions"]["PCOUT"] == "output"


@pytest.mark.parametrize(
    "output",
    [
        # More bits of the sum are used than were added to it.
        list(range(200, 235)),
        # The first slice's result has another reader.
        [*range(200, 234), 103],
    ],
)
def test_others_stay(output: list[int]) -> None:
    design = chain(output)
    join_cascades(design)
    first, second = slices(design)
    assert second["OPMODE"] == ADDEND
    assert "PCOUT" not in first
    assert second["C"][:ADDED] == first["P"][:ADDED]


def test_a_slice_that_keeps_its_addend_stays() -> None:
    design = chain(list(range(200, 234)))
    design["modules"]["vta"]["cells"]["second"]["parameters"]["CREG"] = "1"
    join_cascades(design)
    assert slices(design)[1]["OPMODE"] == ADDEND
