"""Conformance vectors on a second simulator, with arbitrary initial registers and memories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.amaranth_internals.cxxrtl_output import split
from amaranth_vta.sim.devices import DeviceError, open_device
from amaranth_vta.sim.machine.rtl.cxxrtl import machine_cxx
from amaranth_vta.sim.programs.faults import FAULT_KINDS, random_faulty_program
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sw.runtime.device import RunResult
from tests.support.golden import VECTORS

TINY = PRESETS["tiny"]


def run(image: ProgramImage, device_name: str, dram: str) -> tuple[RunResult, np.ndarray]:
    device = open_device(device_name, image.config, image.dram.size, dram=dram)
    device.write(0, image.dram)
    device.set_limits(image.limits)
    result = device.run(image.insn_addr, image.insn_count)
    return result, device.read(0, image.dram.size)


# Compiling the machine takes half a minute, for a comparison of simulators with one another.
# Before the reset all state bits are ones with `ideal` and `ddr`, random with the random memories.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("vector", "dram"),
    [("tiny-1", "ideal"), ("tiny-1", "random:1"), ("tiny-2", "ddr"), ("tiny-2", "random:2")],
)
def test_vectors_take_the_cycles_that_they_take_in_verilator(vector: str, dram: str) -> None:
    image = ProgramImage.load(VECTORS / f"{vector}.npz")
    result, memory = run(image, "cxxrtl", dram)
    assert image.expected is not None
    assert np.array_equal(memory, image.expected)
    other, _ = run(image, "rtl", dram)
    assert (result.cycles, result.counters) == (other.cycles, other.counters)
    assert (result.fault, result.tokens_left) == (None, other.tokens_left)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_faults_are_reported(kind: str) -> None:
    image, fault = random_faulty_program(TINY, kind, seed=3)
    result, _ = run(image, "cxxrtl", "random:3")
    assert result.fault == fault


@pytest.mark.nightly
def test_each_register_is_drawn_before_the_reset() -> None:
    design = machine_cxx(TINY, watched=False)
    declarations, _ = split(design)
    registers, memories = design.count(" = wire<"), design.count("\n\tmemory<")
    assert registers > 300
    assert memories > 20
    assert declarations.count("power_up(p_") == registers
    assert declarations.count("power_up(memory_") == memories


def test_waves_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="the cxxrtl device writes no waves; rtl and pysim do"):
        open_device("cxxrtl", TINY, 64, waves=tmp_path / "waves.vcd")
