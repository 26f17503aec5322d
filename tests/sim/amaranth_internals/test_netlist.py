"""Our faster construction of netlists yields the same RTLIL as Amaranth's."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from amaranth.back import rtlil
from amaranth.hdl._nir import Net, Value

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.load import Load
from amaranth_vta.sim.amaranth_internals import netlist
from amaranth_vta.sim.amaranth_internals.fast_nets import fast_nets
from amaranth_vta.sim.machine.elaborate import pins

TINY = PRESETS["tiny"]


def _rtlil() -> str:
    component = Load(TINY)
    inputs, outputs = pins(component)
    return netlist.rtlil_of(component, "load", {**inputs, **outputs}, reset_less=False)


def test_netlists_are_those_of_amaranth(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = _rtlil()
    monkeypatch.setattr(netlist, "fast_nets", nullcontext)
    monkeypatch.setattr(netlist._ModuleEmitter, "sigspec", rtlil.ModuleEmitter.sigspec)
    assert fast == _rtlil()


def _values() -> list[Any]:
    nets = [Net.from_const(0), Net.from_const(1), *(Net.from_cell(3, bit) for bit in range(4))]
    value = Value(nets)
    return [Value(), Value(nets[2]), Value(value), value[1:4], value[2], Value(iter(nets))]


def test_nets_and_values_are_those_of_amaranth_within_the_context_and_after_it() -> None:
    expected = _values()
    with fast_nets():
        found = _values()
        for cell, bit in ((0, 1), (1, 1 << 16), (-1, 0), (1, -1)):
            with pytest.raises(AssertionError):
                Net.from_cell(cell, bit)
    assert found == expected
    assert [*map(type, found)] == [*map(type, expected)]
    with pytest.raises(AssertionError):
        Value([3])
