"""Systems of several machines without RTL."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.sim.machine.rtl.system import RtlSystem
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.programs.random_programs import legal_program
from amaranth_vta.sim.systems import EstimateSystem, FunctionalSystem
from amaranth_vta.sw.runtime.device import SystemResult
from tests.support.golden import VECTORS

TINY = PRESETS["tiny"]


@cache
def images() -> list[ProgramImage]:
    paths = [*sorted(VECTORS.glob("tiny-?.npz")), VECTORS / "tiny-corners-1.npz"]
    programs = [legal_program(TINY, seed, length=120) for seed in range(60, 64)]
    return [ProgramImage.load(path) for path in paths] + programs


def ran(
    kind: type[EstimateSystem] | type[RtlSystem],
    system: SystemConfig,
    image: ProgramImage,
    machines: int,
    dram: str,
) -> SystemResult:
    """The same program on some machines at once; all write the same data."""
    device = kind(system, image.dram.size, dram)
    device.write(0, image.dram)
    return device.run_all([(image.insn_addr, image.insn_count)] * machines)


@pytest.mark.parametrize(
    ("bits", "of_one", "of_all"),
    [(128, 0.02, 0.005), pytest.param(64, 0.04, 0.02, marks=pytest.mark.nightly)],
)
@pytest.mark.parametrize("dram", [pytest.param("ideal", marks=pytest.mark.nightly), "ddr"])
def test_estimated_cycles_are_about_those_of_the_rtl(
    bits: int, of_one: float, of_all: float, dram: str
) -> None:
    system = SystemConfig(TINY, 2, bits)
    totals = np.zeros(2, np.int64)
    for image in images():
        for machines in (1, 2):
            found = [
                ran(kind, system, image, machines, dram).cycles or 0
                for kind in (RtlSystem, EstimateSystem)
            ]
            assert found[1] == pytest.approx(found[0], rel=of_one)
            totals += found
    assert totals[1] == pytest.approx(totals[0], rel=of_all)


def test_each_machine_has_scratchpads_of_its_own() -> None:
    image = ProgramImage.load(VECTORS / "tiny-1.npz")
    assert image.expected is not None
    system = FunctionalSystem(SystemConfig(TINY, 2), image.dram.size)
    system.write(0, image.dram)
    result = system.run_all([(image.insn_addr, image.insn_count)])
    assert [run.fault for run in result.runs] == [None]
    np.testing.assert_array_equal(system.read(0, image.dram.size), image.expected)
    models = system.models
    assert models[0].memory is models[1].memory is system.memory
    assert models[0].model is not models[1].model
