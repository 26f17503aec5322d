"""No result depends on a block RAM that is read and written at one address in one cycle."""

from __future__ import annotations

from pathlib import Path

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.amaranth_internals.yosys import with_collisions
from amaranth_vta.sim.fuzz.cases import case
from amaranth_vta.sim.fuzz.comparison import differences
from amaranth_vta.sim.fuzz.reference import reference_of
from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sim.machine.host import SimulatedDevice
from amaranth_vta.sim.machine.rtl.build import library, machine_verilog
from amaranth_vta.sim.machine.rtl.engine import CompiledMachine

MACHINES = {"tiny-extended": PRESETS["tiny-extended"]}


@pytest.fixture(scope="module")
def machine() -> Path:
    return library(with_collisions(machine_verilog(MACHINES["tiny-extended"])))


@pytest.mark.nightly  # builds a simulator for this test alone
@pytest.mark.parametrize("number", range(20))
def test_programs_run_correctly_if_colliding_reads_are_inverted(machine: Path, number: int) -> None:
    chosen = case(1, number, MACHINES)
    image = chosen.image()
    device = SimulatedDevice(chosen.config, image.dram.size, origin=image.origin)
    timing = memory_timing(chosen.dram)
    device.attach(CompiledMachine(machine, device.memory, timing, origin=image.origin))
    different, _ = differences(device, image, reference_of(image))
    assert different == []


def test_memories_of_another_form_are_refused() -> None:
    verilog = machine_verilog(PRESETS["tiny"])
    assert with_collisions(verilog).count(" ? ~") == verilog.count("(* no_rw_check")
    with pytest.raises(ValueError, match="memories of"):
        with_collisions(verilog.replace("] <= writer__data", "] = writer__data"))
