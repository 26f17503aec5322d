"""The longest path of handmade netlists, with times that are easy to add."""

from __future__ import annotations

from typing import Any

import pytest

from amaranth_vta.fpga.cell_times import CellTimes, kind, times_of
from amaranth_vta.fpga.timing import NET_NS, longest_path_of

Cell = dict[str, Any]
TIMES = {
    "FDRE": CellTimes({}, {("Q", 0): 0.3}, {("D", 0): 0.1}),
    "LUT2": CellTimes({("I0", 0): [(("O", 0), 1.0)], ("I1", 0): [(("O", 0), 2.0)]}, {}, {}),
    "CARRY4": CellTimes({("S", 0): [(("CO", 0), 0.5)], ("CI", 0): [(("CO", 0), 0.25)]}, {}, {}),
}


def cell(kind: str, outputs: str, **bits: int | str) -> Cell:
    """A cell of one-bit ports, of which ``outputs`` is the output."""
    return {
        "type": kind,
        "parameters": {},
        "port_directions": {port: "output" if port == outputs else "input" for port in bits},
        "connections": {port: [bit] for port, bit in bits.items()},
    }


def design(*cells: Cell, **names: int) -> dict[str, Any]:
    return {
        "ports": {},
        "cells": {str(number): item for number, item in enumerate(cells)},
        "netnames": {name: {"bits": [bit]} for name, bit in names.items()},
    }


def register(before: int, after: int) -> Cell:
    return cell("FDRE", "Q", C=1, D=before, Q=after)


def test_a_path_goes_from_register_to_register_and_each_wire_counts() -> None:
    first, second = (cell("LUT2", "O", I0=a, I1=b, O=o) for a, b, o in ((2, 3, 4), (4, "0", 5)))
    module = design(register(9, 2), register(9, 3), first, second, register(5, 6), begin=3, end=6)
    path = longest_path_of(module, TIMES)
    assert (path.begin, path.end, path.levels) == ("begin[0]", "end[0]", 2)
    # 0.3 clock to output, I1 of the first LUT, I0 of the second, and 0.1 setup.
    assert path.cells_ns == pytest.approx(0.3 + 2.0 + 1.0 + 0.1)
    # To both LUTs; the register is in the slice of the second.
    assert path.nets == 2
    assert path.mhz == pytest.approx(1000 / (3.4 + 2 * NET_NS))


def test_a_register_with_other_readers_of_its_lut_is_a_wire_away() -> None:
    lut = cell("LUT2", "O", I0=2, I1="0", O=3)
    module = design(register(9, 2), lut, register(3, 4), register(3, 5))
    assert longest_path_of(module, TIMES).nets == 2


def test_an_addend_is_no_clock() -> None:
    adds = CellTimes({("C", 0): [(("P", 0), 1.0)]}, {}, {})
    module = design(register(9, 2), cell("DSP48E1", "P", C=2, P=3), register(3, 4))
    assert longest_path_of(module, TIMES | {"DSP48E1": adds}).cells_ns == pytest.approx(1.4)


def test_nothing_counts_within_a_carry_chain() -> None:
    lut = cell("LUT2", "O", I0=2, I1="0", O=3)
    chain = (
        cell("CARRY4", "CO", S=3, CI="0", CO=4),
        cell("CARRY4", "CO", S="0", CI=4, CO=5),
        cell("LUT2", "O", I0=5, I1="0", O=6),
    )
    path = longest_path_of(design(register(9, 2), lut, *chain, register(6, 7)), TIMES)
    assert (path.nets, path.levels) == (2, 4)
    assert path.cells_ns == pytest.approx(0.3 + 1.0 + 0.5 + 0.25 + 1.0 + 0.1)


def test_a_loop_that_never_closes_ends() -> None:
    loop = (
        cell("LUT2", "O", I0=3, I1="0", O=4),
        cell("LUT2", "O", I0=2, I1=4, O=3),
    )
    path = longest_path_of(design(register(9, 2), *loop, register(4, 5), end=5), TIMES)
    assert path.end == "end[0]"
    assert path.levels == 2


def test_times_are_those_of_the_library_with_the_parameters_of_a_cell() -> None:
    slice_ = cell("DSP48E1", "P", A=2, P=3) | {
        "parameters": {"AREG": "1", "USE_MULT": "MULTIPLY ", "MASK": "0"}
    }
    assert kind(slice_) == 'DSP48E1 #(.AREG(1\'b1), .USE_MULT("MULTIPLY"))'


def test_specifications_of_paths_and_of_setup() -> None:
    def specification(kind: str, ends: dict[str, list[int]], **parameters: str) -> Cell:
        return {"type": kind, "parameters": parameters, "connections": ends}

    paths: list[tuple[str, dict[str, list[int]], dict[str, str]]] = [
        ("$specify2", {"SRC": [2, 3], "DST": [4, 5]}, {"FULL": "0", "T_RISE_MAX": f"{500:b}"}),
        ("$specify2", {"SRC": [2], "DST": [4]}, {"FULL": "1", "T_RISE_MAX": f"{750:b}"}),
        ("$specify3", {"SRC": [1], "DST": [4]}, {"T_RISE_MAX": f"{250:b}"}),
        ("$specrule", {"SRC": [2], "DST": [1]}, {"T_LIMIT_MAX": f"{125:b}"}),
    ]
    library = {
        "ports": {"A": {"bits": [2, 3]}, "O": {"bits": [4, 5]}, "C": {"bits": [1]}},
        "cells": {
            str(number): specification(kind, ends, **parameters)
            for number, (kind, ends, parameters) in enumerate(paths)
        },
    }
    times = times_of(library, cell("PAIR", "O", A=2, O=4))
    assert times.through == {
        ("A", 0): [(("O", 0), 0.5), (("O", 0), 0.75)],
        ("A", 1): [(("O", 1), 0.5)],
    }
    assert times.after_clock == {("O", 0): 0.25}
    assert times.before_clock == {("A", 0): 0.125}
