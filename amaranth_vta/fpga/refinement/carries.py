"""Merges LUTs into the ECP5 carry chains that they drive: `fill_carries`.

Yosys uses two of the four inputs of each bit of a chain. A LUT that drives one of them, such as an
operand multiplexer, costs area and a level of delay, although the chain could compute its function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, permutations, product
from typing import Any, NamedTuple

from amaranth_vta.fpga.netlist import Bit, Cell, uses

_INPUTS = "ABCD"
_ONE = "1"


def fill_carries(netlist: dict[str, Any]) -> int:
    """Merge LUTs into the carry chains that they drive. Modifies a ``netlist`` in Yosys' format in
    place, with all cells in one module, and returns the number of removed LUTs.

    Half of a CCU2C with inputs a to d computes the sum ``P(a, b, c, d) ^ carry`` and the next
    carry, ``carry if P(a, b, c, d) else P(a, b, 0, 0)`` (FPGA-TN-02039, and Yosys' model). A LUT
    that drives an input is merged into P if the LUT and the other inputs depend on at most four
    bits, and an order of these bits keeps the next carry correct where P is 0. A LUT with other
    readers is kept for them, but the path through the chain becomes shorter.
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
        # LUTs that can be removed come first; the others use the remaining inputs.
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
    """Half of a CCU2C after merging: its ``inputs`` and ``init``, and the ``outputs`` of the merged
    LUTs.
    """

    inputs: tuple[Bit, ...]
    init: int
    outputs: tuple[Bit, ...]


def _filled(inputs: list[Bit], init: int, before: Mapping[Bit, Cell]) -> _Filled | None:
    """The half after merging as many of the LUTs ``before`` it as possible; None if none can be
    merged.
    """
    for count in range(len(before), 0, -1):
        for outputs in combinations(before, count):
            made = _merged(inputs, init, {bit: before[bit] for bit in outputs})
            if made is not None:
                return made
    return None


def _merged(inputs: list[Bit], init: int, replaced: Mapping[Bit, Cell]) -> _Filled | None:
    """The half after merging the LUTs ``replaced``, by output; None if they do not fit."""
    leaves: dict[Bit, None] = {}
    for bit in inputs:
        cell = replaced.get(bit)
        bits = [bit] if cell is None else [bits[0] for bits in _inputs_of(cell)]
        leaves |= {leaf: None for leaf in bits if isinstance(leaf, int)}
    if len(leaves) > len(_INPUTS):
        return None
    # By the values of the leaves: P, and the carry that is generated if P is 0.
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
    """INIT of a half whose inputs are the leaves in ``order``, padded with constant 1; None if its
    carry function would be wrong.
    """
    table: dict[int, int] = {}
    carries: dict[int, int] = {}
    unused = [1] * (len(_INPUTS) - len(order))
    for values, (propagates, carry) in functions.items():
        given = [*(values[place] for place in order), *unused]
        table[_index(given)] = propagates
        if not propagates and carries.setdefault(_index(given[:2]), carry) != carry:
            return None
    for place, carry in carries.items():
        # If an input is constant 1, this entry of the table serves the carry only.
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
    """Index of the inputs ``bits`` in a truth table, lowest bit first."""
    return sum(bit << place for place, bit in enumerate(bits))
