"""Factors moved to the upper bits of multipliers, against the original products."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from amaranth_vta.fpga.refinement.factors import align_factors
from tests.support.seeds import each_seed

Netlist = dict[str, Any]
# Bits of the nets of two factors and their product.
A, B, P = range(100, 118), range(200, 218), range(300, 336)


def multiplier(widths: tuple[int, int], signed: tuple[bool, bool], used: int) -> Netlist:
    """A multiplier of factors of these widths, extended to 18 bits as Yosys does; only the low
    ``used`` bits of its product are outputs.
    """
    pins: dict[str, list[Any]] = {f"P{place}": [bit] for place, bit in enumerate(P)}
    for factor, nets, width, is_signed in zip("AB", (A, B), widths, signed, strict=True):
        above: list[Any] = [nets[width - 1] if is_signed else "0"]
        for place in range(18):
            pins[f"{factor}{place}"] = [nets[place]] if place < width else above
        pins[f"SIGNED{factor}"] = [str(int(is_signed))]
    directions = {pin: "output" if pin[0] == "P" else "input" for pin in pins}
    cell = {"type": "MULT18X18D", "port_directions": directions, "connections": pins}
    ports = {"o": {"direction": "output", "bits": list(P[:used])}}
    return {"modules": {"vta": {"ports": ports, "cells": {"multiplier": cell}}}}


def pins_of(design: Netlist) -> dict[str, list[Any]]:
    pins: dict[str, list[Any]] = design["modules"]["vta"]["cells"]["multiplier"]["connections"]
    return pins


def product_of(design: Netlist, factors: tuple[int, int]) -> int:
    """The used bits of the product of ``factors`` according to the 18 × 18 multiplier cell."""
    known: dict[Any, int] = {"0": 0, "1": 1}
    for nets, chosen in zip((A, B), factors, strict=True):
        known |= {bit: chosen >> place & 1 for place, bit in enumerate(nets)}
    pins, values = pins_of(design), []
    for factor in "AB":
        value = sum(known[pins[f"{factor}{place}"][0]] << place for place in range(18))
        values.append(value - (value >> 17 << 18 if pins[f"SIGNED{factor}"] == ["1"] else 0))
    made = values[0] * values[1]
    known |= {pins[f"P{place}"][0]: made >> place & 1 for place in range(36)}
    outputs = design["modules"]["vta"]["ports"]["o"]["bits"]
    return sum(known[bit] << place for place, bit in enumerate(outputs))


@each_seed(range(200))
def test_products_stay_the_same(seed: int) -> None:
    chosen = random.Random(seed)
    widths = (chosen.randint(1, 18), chosen.randint(1, 18))
    signed = (chosen.random() < 0.7, chosen.random() < 0.7)
    before = multiplier(widths, signed, chosen.randint(1, sum(widths)))
    after = copy.deepcopy(before)
    lost = align_factors(after)
    assert lost == sum(18 - w for w, s in zip(widths, signed, strict=True) if s)
    ends = [(0, 1, (1 << width - 1) - 1, 1 << width - 1, (1 << width) - 1) for width in widths]
    pairs = [(a, b) for a in ends[0] for b in ends[1]]
    pairs += [(chosen.getrandbits(widths[0]), chosen.getrandbits(widths[1])) for _ in range(50)]
    for factors in pairs:
        limited = (factors[0] % (1 << widths[0]), factors[1] % (1 << widths[1]))
        assert product_of(after, limited) == product_of(before, limited), (widths, signed, limited)


def test_zeros_take_the_place_of_signs() -> None:
    design = multiplier((8, 8), (True, True), 16)
    assert align_factors(design) == 20
    pins = pins_of(design)
    for factor, nets in (("A", A), ("B", B)):
        bits = [pins[f"{factor}{place}"][0] for place in range(18)]
        assert bits == ["0"] * 10 + list(nets[:8])
    assert [pins[f"P{place}"] for place in range(20, 36)] == [[bit] for bit in P[:16]]


@pytest.mark.parametrize(("widths", "signed"), [((8, 8), (False, False)), ((18, 18), (True, True))])
def test_what_has_no_copies_of_a_sign_stays(
    widths: tuple[int, int], signed: tuple[bool, bool]
) -> None:
    design = multiplier(widths, signed, 16)
    before = copy.deepcopy(design)
    assert align_factors(design) == 0
    assert design == before


def test_a_product_whose_upper_bits_are_read_stays() -> None:
    design = multiplier((8, 8), (True, True), 17)
    before = copy.deepcopy(design)
    assert align_factors(design) == 0
    assert design == before
