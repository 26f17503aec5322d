"""Random programs on the RTL: every byte and every report equal to the model's."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sim.fuzz.comparison import compare
from amaranth_vta.sim.programs.faults import FAULT_KINDS, faulty_program, random_faulty_program
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.programs.random_programs import legal_program, most_origin, random_program
from amaranth_vta.sim.programs.relocation import random_relocation
from amaranth_vta.sw.runtime.device import RunResult
from tests.support.corners import CORNERS
from tests.support.golden import VECTORS
from tests.support.machines import DAILY, is_daily, others_nightly
from tests.support.seeds import each_seed

# The daily machines, and the machines of the conformance vectors.
CONFIGS = {name: (PRESETS | CORNERS)[name] for name in DAILY} | {
    f"vector {path.stem.partition('-')[0]}": ProgramImage.load(path).config
    for path in sorted(VECTORS.glob("*-1.npz"))
    if not is_daily(ProgramImage.load(path).config)
}
DRAMS = ("ideal", "ddr", "random:1", "random:2")
DAILY_DRAMS = ("ddr", "random:1")
PROGRAMS = 10  # for each configuration and memory


def run(image: ProgramImage, device_name: str, dram: str) -> tuple[RunResult, np.ndarray]:
    device = open_device(device_name, image.config, image.dram.size, dram=dram)
    device.write(0, image.dram)
    device.set_limits(image.limits)
    result = device.run(image.insn_addr, image.insn_count)
    return result, device.read(0, image.dram.size)


@pytest.mark.parametrize("dram", others_nightly(DRAMS, DAILY_DRAMS.__contains__))
@pytest.mark.parametrize("name", others_nightly(CONFIGS))
def test_random_programs_do_the_same(name: str, dram: str) -> None:
    config = CONFIGS[name]
    first = PROGRAMS * DRAMS.index(dram)
    for seed in range(first, first + PROGRAMS):
        origin = seed % 2 * most_origin(config, 1 << 24)
        image = legal_program(config, seed, deep_tokens=seed % 10 == 2, origin=origin)
        relocation = random_relocation(image, random.Random(seed)) if seed % 3 == 0 else None
        comparison = compare(image, ["rtl"], dram, is_ordered=True, relocation=relocation)
        assert comparison.differences == [], seed
        assert comparison.cycles > image.insn_count


@pytest.mark.parametrize("device", ["functional", "rtl"])
def test_bounds_of_requantize_that_cross_give_the_upper_one(device: str) -> None:
    image = ProgramImage.load(VECTORS.parent / "requantize_low_above_high.npz")
    # Extra extensions, unused by the program, give a machine whose simulator other tests build as
    # well.
    later = ("lookup", "depthwise", "forward", "multiply_add", "round_twice", "wgt_4bit")
    others = dict.fromkeys(later, 1)
    image = replace(image, config=replace(image.config, **others))
    assert image.config == CONFIGS["tiny-extended"]
    result, memory = run(image, device, "ideal")
    assert result.fault is None
    assert image.expected is not None
    assert np.array_equal(memory, image.expected)


@pytest.mark.parametrize("kind", [*FAULT_KINDS, "flipped_bits"])
@pytest.mark.parametrize("name", ["tiny", "int4", "tiny-extended", "bus256-one-lane"])
@each_seed(range(5), daily=3)
def test_faults_are_reported_and_contained_as_the_model_does(
    name: str, kind: str, seed: int
) -> None:
    """Memory and scratchpads, which the next program reveals, hold the model's contents."""
    config = CONFIGS[name]
    kinds = [kind, *FAULT_KINDS[seed : seed + seed % 3]]
    origin = seed % 2 * most_origin(config, 1 << 24)
    image = faulty_program(config, kinds, seed, origin)
    dram = DRAMS[seed % 4]
    relocation = random_relocation(image, random.Random(seed)) if seed % 3 == 0 else None
    comparison = compare(image, ["rtl"], dram, relocation=relocation)
    assert comparison.differences == [], dram


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_the_machine_runs_the_next_programs_after_faults(kind: str) -> None:
    config = CONFIGS["tiny"]
    faulty, fault = random_faulty_program(config, kind, seed=9)
    good = random_program(config, seed=9)
    device = open_device("rtl", config, max(faulty.dram.size, good.dram.size), dram="random:9")
    for _ in range(2):
        device.write(0, faulty.dram)
        device.set_limits(faulty.limits)
        assert device.run(faulty.insn_addr, faulty.insn_count).fault == fault
        device.write(0, good.dram)
        device.set_limits(good.limits)
        assert device.run(good.insn_addr, good.insn_count).fault is None
        assert good.expected is not None
        assert np.array_equal(device.read(0, good.dram.size), good.expected)


@pytest.mark.parametrize("name", ["functional", "rtl"])
def test_padding_is_zero_at_the_start_of_each_run(name: str) -> None:
    config = CONFIGS["tiny-extended"]
    encode = isa.instruction_set(config).encode
    pad = isa.Load(memory=isa.Memory.ACC, x_size=1, y_size=0, y_pad_0=1, push_next=1)
    tail = [pad, isa.Store(pop_prev=1), isa.Finish()]
    program = [isa.set_padding(isa.Padding.COMPUTE, 0x45), *tail]
    device = open_device(name, config, 1 << 10)
    device.write(512, b"".join(encode(item).to_bytes(16, "little") for item in program))
    for first, value in ((0, 0x45), (1, 0), (0, 0x45)):
        result = device.run(512 + 16 * first, len(program) - first)
        assert result.fault is None
        assert device.read(0, config.out.element_bytes).tolist() == [value] * 4


@each_seed(range(2), daily=1)
def test_pysim_leaves_the_same_memory(seed: int) -> None:
    image = random_program(CONFIGS["tiny"], seed, length=15)
    result, memory = run(image, "pysim", f"random:{seed}")
    assert result.fault is None
    assert image.expected is not None
    assert np.array_equal(memory, image.expected)
