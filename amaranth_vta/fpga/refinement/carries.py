"""Puts LUTs before the carry chains of an ECP5 into the chains: `fill_carries`.

Yosys uses two of the four inputs that each bit of a chain has. A LUT before one of these, such as
the choice of an operand, takes the place of another bit of logic and the time to get from one to
the other, where the chain could compute it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, permutations, product
from typing import Any, NamedTuple

from amaranth_vta.fpga.netlist import Bit, Cell, uses

_INPUTS = "ABCD"
_ONE = "1"


def fill_carries(netlist: dict[str, Any]) -> int:
    """Merge LUTs into the carry chains that they drive. Changes a ``netlist`` as Yosys writes it,
    with all cells in one module, and returns the number of removed LUTs.

    Half of a CCU2C with inputs a to d computes the sum ``P(a, b, c, d) ^ carry`` and the next
    carry, ``carry if P(a, b, c, d) else P(a, b, 0, 0)`` (FPGA-TN-02039, and Yosys' model). A LUT
    before it becomes part of P if it and the other inputs depend on at most four bits, in an order
    in which the second function is correct where P is 0. A LUT with other readers remains for
    these, but the path through the chain becomes shorter.
    """
    lost = 0
    for module in netlist["modules"].values():
        cells: dict[str, Cell] = module["cells"]
        used = uses(module)
        luts = {
            cell["connections"]["Z"][0]: name
            for name, cell in cells.items()
            if cell["type"] == "LUT4"
        }
        chains = [cell for cell in cells.values() if cell["type"] == "CCU2C"]
        # LUTs that can be removed first; others take the remaining inputs.
        for most_uses, chain, half in product((1, len(used)), chains, "01"):
            while True:
                inputs = [chain["connections"][f"{place}{half}"][0] for place in _INPUTS]
                before = {
                    bit: cells[luts[bit]]
                    for bit in inputs
                    if bit in luts and used[bit] <= most_uses
                }
                filled = _filled(inputs, int(chain["parameters"][f"INIT{half}"], 2), before)
                if filled is None:
                    break
                for place, bit in zip(_INPUTS, filled.inputs, strict=True):
                    chain["connections"][f"{place}{half}"] = [bit]
                chain["parameters"][f"INIT{half}"] = f"{filled.init:016b}"
                used.subtract(inputs)
                used.update(filled.inputs)
                for output in [bit for bit in filled.outputs if not used[bit]]:
                    cell = cells.pop(luts.pop(output))
                    used.subtract(bits[0] for bits in _inputs_of(cell))
                    lost += 1
    return lost


class _Filled(NamedTuple):
    """Half of a CCU2C: ``inputs`` and ``init``, and the ``outputs`` of LUTs that it replaces."""

    inputs: tuple[Bit, ...]
    init: int
    outputs: tuple[Bit, ...]


def _filled(inputs: list[Bit], init: int, before: Mapping[Bit, Cell]) -> _Filled | None:
    """The half with as many of the LUTs ``before`` it as fit, at least one; None if none does."""
    for count in range(len(before), 0, -1):
        for outputs in combinations(before, count):
            made = _merged(inputs, init, {bit: before[bit] for bit in outputs})
            if made is not None:
                return made
    return None


def _merged(inputs: list[Bit], init: int, replaced: Mapping[Bit, Cell]) -> _Filled | None:
    """The half with the LUTs ``replaced``, by their output; None if they do not fit."""
    leaves: dict[Bit, None] = {}
    for bit in inputs:
        cell = replaced.get(bit)
        bits = [bit] if cell is None else [bits[0] for bits in _inputs_of(cell)]
        leaves |= {leaf: None for leaf in bits if isinstance(leaf, int)}
    if len(leaves) > len(_INPUTS):
        return None
    # By the values of the leaves: P, and the carry that is made where P is 0.
    functions = {}
    for values in product((0, 1), repeat=len(leaves)):
        known: dict[Bit, int] = dict(zip(leaves, values, strict=True))
        given = [_value(bit, known, replaced) for bit in inputs]
        functions[values] = init >> _index(given) & 1, init >> _index(given[:2]) & 1
    for order in permutations(range(len(leaves))):
        made = _init(functions, order)
        if made is not None:
            ordered = [list(leaves)[place] for place in order]
            unused = [_ONE] * (len(_INPUTS) - len(ordered))
            return _Filled((*ordered, *unused), made, tuple(replaced))
    return None


def _init(
    functions: Mapping[tuple[int, ...], tuple[int, int]], order: tuple[int, ...]
) -> int | None:
    """INIT of a half whose inputs are the leaves in that ``order``, padded with 1."""
    table: dict[int, int] = {}
    carries: dict[int, int] = {}
    unused = [1] * (len(_INPUTS) - len(order))
    for values, (propagates, carry) in functions.items():
        given = [*(values[place] for place in order), *unused]
        table[_index(given)] = propagates
        if not propagates and carries.setdefault(_index(given[:2]), carry) != carry:
            return None
    for place, carry in carries.items():
        # Where an input is always 1, this place of the table is the carry's alone.
        if table.setdefault(place, carry) != carry:
            return None
    return sum(bit << place for place, bit in table.items())


def _inputs_of(lut: Cell) -> Iterator[list[Bit]]:
    return (lut["connections"][place] for place in _INPUTS)


def _value(bit: Bit, known: Mapping[Bit, int], replaced: Mapping[Bit, Cell]) -> int:
    if (cell := replaced.get(bit)) is None:
        return known[bit] if bit in known else int(bit == _ONE)
    given = [_value(bits[0], known, {}) for bits in _inputs_of(cell)]
    return int(cell["parameters"]["INIT"], 2) >> _index(given) & 1


def _index(bits: list[int]) -> int:
    """The place in a table of the inputs ``bits``, the lowest first."""
    return sum(bit << place for place, bit in enumerate(bits))
