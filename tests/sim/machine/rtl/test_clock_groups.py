"""Register groups are clocked only while active, without changing any result.

Runs nightly: other tests hold a simulator with groups against the functional model.
"""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.machine.rtl.engine import RtlDevice
from amaranth_vta.sim.programs.faults import FAULT_KINDS, random_faulty_program
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.programs.random_programs import random_program
from amaranth_vta.sw.runtime.device import RunResult
from tests.support.seeds import each_seed

pytestmark = pytest.mark.nightly
CONFIGS = ["tiny", "tiny-extended"]


def run(image: ProgramImage, dram: str, grouped: bool) -> tuple[list[RunResult], np.ndarray]:
    """Results of two runs, so that leftovers of the first one would show, and the final memory."""
    device = RtlDevice(image.config, image.dram.size, dram, grouped=grouped)
    results = []
    for _ in range(2):
        device.write(0, image.dram)
        device.set_limits(image.limits)
        results.append(device.run(image.insn_addr, image.insn_count))
    return results, device.read(0, image.dram.size)


def assert_equal(image: ProgramImage, dram: str) -> np.ndarray:
    """Runs ``image`` with and without groups; returns the memory that both leave."""
    (apart, memory), (together, expected) = (run(image, dram, grouped) for grouped in (True, False))
    for one, other in zip(apart, together, strict=True):
        assert one.cycles == other.cycles
        assert one.fault == other.fault
        assert one.tokens_left == other.tokens_left
        assert one.counters == other.counters
    assert np.array_equal(memory, expected)
    return memory


@each_seed(range(12))
@pytest.mark.parametrize("dram", ["ideal", "ddr", "random:1"])
@pytest.mark.parametrize("name", CONFIGS)
def test_random_programs_are_the_same_with_and_without_groups(
    name: str, dram: str, seed: int
) -> None:
    image = random_program(PRESETS[name], seed)
    memory = assert_equal(image, dram)
    assert image.expected is not None
    assert np.array_equal(memory, image.expected)


@each_seed(range(3))
@pytest.mark.parametrize("kind", FAULT_KINDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_faults_are_the_same_with_and_without_groups(name: str, kind: str, seed: int) -> None:
    image, _ = random_faulty_program(PRESETS[name], kind, seed)
    assert_equal(image, f"random:{seed + 1}")
