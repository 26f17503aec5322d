"""Devices are opened by name or by options, and reject unsupported options in one sentence."""

from __future__ import annotations

from dataclasses import fields

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.devices import DeviceError, RunKeywords, RunOptions, open_device
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


def test_options_open_the_device_that_they_name() -> None:
    options = RunOptions("functional", skip="load")
    device = options.open(PRESETS["tiny"], 100, order="reverse")
    assert device.name == options.name == "functional"
    assert not options.has_results
    assert RunOptions(device).open(PRESETS["pynq"], 1) is device
    assert RunOptions(device).name == "functional"


def test_keywords_are_the_options_besides_device_and_memory() -> None:
    names = [field.name for field in fields(RunOptions)]
    assert names == ["device", "dram", *RunKeywords.__annotations__]


def test_options_are_given_in_one_way() -> None:
    options = RunOptions("rtl", "ddr", waves="x.vcd")
    assert RunOptions.of(options, "ideal", {}) is options
    assert RunOptions.of("rtl", "ddr", {"waves": "x.vcd"}) == options
    for dram, keywords in (("ddr", RunKeywords()), ("ideal", RunKeywords(skip="load"))):
        with pytest.raises(TypeError, match="both in RunOptions and as keyword arguments"):
            RunOptions.of(options, dram, keywords)
