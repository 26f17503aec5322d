"""LUTs merged into carry chains of a netlist compute the same function."""

from __future__ import annotations

import copy
import random
from itertools import product
from typing import Any

import pytest

from amaranth_vta.fpga.refinement.carries import fill_carries

# A LUT as Yosys maps an addition: a + b, or a + ~b if c is set; d is always 1.
ADDER = 0b1001_0110_1010_1010
AND, OR, NAND, XOR = 0b1000, 0b1110, 0b0111, 0b0110
Netlist = dict[str, Any]


def lut(table: int, inputs: list[Any], output: int) -> dict[str, Any]:
    """A LUT of up to four inputs; unused inputs are 0, as Yosys leaves them."""
    return cell("LUT4", {"INIT": f"{table:016b}"}, [*inputs, *"0000"][:4], output)


def cell(kind: str, parameters: dict[str, str], inputs: list[Any], output: int) -> dict[str, Any]:
    connections = {place: [bit] for place, bit in zip("ABCD", inputs, strict=True)}
    return {
        "type": kind,
        "parameters": parameters,
        "port_directions": {**dict.fromkeys("ABCD", "input"), "Z": "output"},
        "connections": {**connections, "Z": [output]},
    }


def chain(halves: list[list[Any]], carry: Any, outputs: list[int]) -> dict[str, Any]:
    """A CCU2C; the last one of ``outputs`` is the carry."""
    inputs = {
        f"{place}{half}": [bit]
        for half, bits in enumerate(halves)
        for place, bit in zip("ABCD", bits, strict=True)
    }
    found = {"S0": outputs[0], "S1": outputs[1], "COUT": outputs[2]}
    return {
        "type": "CCU2C",
        "parameters": {f"INIT{half}": f"{ADDER:016b}" for half in range(2)},
        "port_directions": {
            **dict.fromkeys([*inputs, "CIN"], "input"),
            **dict.fromkeys(found, "output"),
        },
        "connections": {**inputs, "CIN": [carry], **{port: [bit] for port, bit in found.items()}},
    }


def netlist(cells: list[dict[str, Any]], inputs: list[int], outputs: list[int]) -> Netlist:
    ports = {
        "inputs": {"direction": "input", "bits": inputs},
        "outputs": {"direction": "output", "bits": outputs},
    }
    named = {f"cell{number}": item for number, item in enumerate(cells)}
    return {"modules": {"vta": {"ports": ports, "cells": named}}}


def outputs_of(design: Netlist, values: tuple[int, ...]) -> list[int]:
    """Outputs of a netlist, with cells evaluated in dependence order."""
    module = design["modules"]["vta"]
    known: dict[Any, int] = {"0": 0, "1": 1}
    known |= dict(zip(module["ports"]["inputs"]["bits"], values, strict=True))
    for item in module["cells"].values():
        bits = {port: bit for port, (bit,) in item["connections"].items()}
        if item["type"] == "LUT4":
            place = sum(known[bits[port]] << shift for shift, port in enumerate("ABCD"))
            known[bits["Z"]] = int(item["parameters"]["INIT"], 2) >> place & 1
            continue
        carry = known[bits["CIN"]]
        for half in "01":
            given = [known[bits[f"{port}{half}"]] for port in "ABCD"]
            table = int(item["parameters"][f"INIT{half}"], 2)
            propagates = table >> sum(bit << place for place, bit in enumerate(given)) & 1
            made = table >> (given[0] + 2 * given[1]) & 1
            known[bits[f"S{half}"]] = propagates ^ carry
            carry = carry if propagates else made
        known[bits["COUT"]] = carry
    return [known[bit] for bit in module["ports"]["outputs"]["bits"]]


def assert_unchanged(before: Netlist, after: Netlist) -> None:
    width = len(before["modules"]["vta"]["ports"]["inputs"]["bits"])
    for values in product((0, 1), repeat=width):
        assert outputs_of(after, values) == outputs_of(before, values), values


def filled(design: Netlist) -> tuple[Netlist, int]:
    after = copy.deepcopy(design)
    lost = fill_carries(after)
    left = [item["type"] for item in after["modules"]["vta"]["cells"].values()]
    assert len(left) == len(design["modules"]["vta"]["cells"]) - lost
    return after, lost


def one_half(tables: list[int], inputs: list[Any], inverts: Any = "0") -> Netlist:
    """The sum of two functions, each of two of the four ``inputs``, in one half of a chain."""
    first, second = (
        lut(table, inputs[2 * number : 2 * number + 2], 20 + number)
        for number, table in enumerate(tables)
    )
    sum_of = chain([[20, 21, inverts, "1"], ["0", "0", "0", "1"]], 10, [30, 31, 32])
    used = sorted({bit for bit in (*inputs, inverts) if isinstance(bit, int)})
    return netlist([first, second, sum_of], [*used, 10], [30, 31, 32])


@pytest.mark.parametrize(
    ("tables", "inputs", "inverts", "lost"),
    [
        ([AND, AND], [2, 3, 4, 5], "0", 2),
        ([OR, AND], [2, 3, 4, 5], "0", 2),
        # The carry is right with either function at the lower inputs.
        ([NAND, AND], [2, 3, 4, 5], "0", 2),
        # Neither function is 0 when its inputs are 0.
        ([NAND, NAND], [2, 3, 4, 5], "0", 1),
        ([NAND, NAND], [2, 3, 3, 2], "0", 2),
        ([AND, OR], [2, 3, 3, 4], "0", 2),
        ([XOR, AND], [2, 3, 4, 5], 6, 1),
        ([XOR, AND], [2, 3, 3, 2], 6, 2),
    ],
)
def test_functions_of_up_to_four_bits_are_computed_in_the_chain(
    tables: list[int], inputs: list[int], inverts: Any, lost: int
) -> None:
    before = one_half(tables, inputs, inverts)
    after, found = filled(before)
    assert found == lost
    assert_unchanged(before, after)


def test_what_else_needs_a_lut_keeps_it() -> None:
    before = one_half([AND, AND], [2, 3, 4, 5])
    before["modules"]["vta"]["ports"]["outputs"]["bits"].append(20)
    after, lost = filled(before)
    assert lost == 1
    assert_unchanged(before, after)
    # The chain does not depend on it.
    (half,) = [
        cell for cell in after["modules"]["vta"]["cells"].values() if "CIN" in cell["connections"]
    ]
    assert {half["connections"][f"{place}0"][0] for place in "ABCD"} == {2, 3, 4, 5}


def test_a_lut_before_two_chains_goes_when_both_compute_it() -> None:
    before = one_half([AND, AND], [2, 3, 4, 5])
    module = before["modules"]["vta"]
    module["cells"]["other"] = chain([[20, 6, "0", "1"], ["0", "0", "0", "1"]], 10, [40, 41, 42])
    module["ports"]["inputs"]["bits"].append(6)
    module["ports"]["outputs"]["bits"] += [40, 41, 42]
    after, lost = filled(before)
    assert lost == 2
    assert_unchanged(before, after)


def test_a_choice_of_an_operand_is_made_in_the_chain() -> None:
    choice = lut(0b1100_1010, [2, 3, 4], 20)  # 3 if 4, else 2
    halves: list[list[Any]] = [[20, 5, "0", "1"], ["0", "0", "0", "1"]]
    before = netlist([choice, chain(halves, 10, [30, 31, 32])], [2, 3, 4, 5, 10], [30, 31, 32])
    after, lost = filled(before)
    assert lost == 1
    assert_unchanged(before, after)


@pytest.mark.parametrize("seed", range(100))
def test_random_logic_before_a_chain_computes_the_same(seed: int) -> None:
    chosen = random.Random(seed)
    inputs = list(range(2, 9))
    cells, nets = [], [*inputs, "0", "1"]
    for number in range(6):
        size = chosen.randint(1, 4)
        made = lut(chosen.getrandbits(16), chosen.sample(nets, size), 20 + number)
        cells.append(made)
        nets.append(20 + number)
    halves = [
        [*chosen.sample(nets[-8:], 2), chosen.choice(["0", "1", chosen.choice(nets)]), "1"]
        for _ in range(4)
    ]
    cells.append(chain(halves[:2], chosen.choice(inputs), [40, 41, 42]))
    cells.append(chain(halves[2:], 42, [43, 44, 45]))
    before = netlist(cells, inputs, [40, 41, 43, 44, 45])
    assert_unchanged(before, filled(before)[0])
