"""Devices are opened by name, and reject unsupported options in one sentence."""

from __future__ import annotations

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.devices import DeviceError, open_device
from amaranth_vta.sim.machine.dram import DramError


def test_the_functional_model_is_opened_with_its_order() -> None:
    device = open_device("functional", PRESETS["tiny"], 100, order="random:5")
    assert device.name == "functional"
    assert device.config == PRESETS["tiny"]
    assert device.memory_bytes == 128
    assert device.read(0, 128).sum() == 0


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(
        DeviceError, match="'abacus' is not a device; .* functional, rtl, cxxrtl, pysim"
    ):
        open_device("abacus", PRESETS["tiny"], 64)
    with pytest.raises(DeviceError, match="order 'sideways' is not"):
        open_device("functional", PRESETS["tiny"], 64, order="sideways")
    with pytest.raises(DeviceError, match="no clock, hence no waves"):
        open_device("functional", PRESETS["tiny"], 64, waves="x.vcd")
    with pytest.raises(DramError, match="'sram' is not a memory model"):
        open_device("functional", PRESETS["tiny"], 64, dram="sram")
