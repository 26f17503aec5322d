"""The compiled machine reproduces the conformance vectors on every memory model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.machine.dram import DramError
from amaranth_vta.sim.machine.rtl.engine import RtlDevice
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sw.runtime.device import Fault, RunResult
from tests.support.golden import VECTORS
from tests.support.machines import is_daily, others_nightly
from tests.support.seeds import each_seed

TINY = PRESETS["tiny"]


def vector(name: str) -> ProgramImage:
    return ProgramImage.load(VECTORS / f"{name}.npz")


def replay(name: str, dram: str = "ideal") -> RunResult:
    """Runs a vector on a fresh machine and compares all of memory."""
    image = vector(name)
    device = RtlDevice(image.config, image.dram.size, dram)
    device.write(0, image.dram)
    result = device.run(image.insn_addr, image.insn_count)
    assert result.fault is None
    np.testing.assert_array_equal(device.read(0, image.dram.size), image.expected)
    return result


def finish(device: RtlDevice, *instructions: isa.Instruction) -> RunResult:
    """Runs ``instructions`` and FINISH."""
    program = [*instructions, isa.Finish()]
    encode = isa.instruction_set(device.config).encode
    device.write(0, b"".join(encode(item).to_bytes(16, "little") for item in program))
    return device.run(0, len(program))


@pytest.mark.parametrize(
    "name",
    others_nightly(
        sorted(path.stem for path in VECTORS.glob("*.npz")),
        lambda name: is_daily(vector(name).config),
    ),
)
def test_a_vector_gives_what_is_expected(name: str) -> None:
    replay(name)


@each_seed(range(4))
@pytest.mark.parametrize(
    "name",
    ["tiny-1", "tiny-corners-1", "int4-1", pytest.param("batch2-1", marks=pytest.mark.nightly)],
)
def test_a_vector_gives_the_same_on_a_random_memory(name: str, seed: int) -> None:
    replay(name, f"random:{seed}")


def test_a_vector_takes_longer_on_ddr() -> None:
    assert (replay("tiny-1", "ddr").cycles or 0) > (replay("tiny-1").cycles or 0)


def test_a_vector_takes_the_same_cycles_again() -> None:
    image = vector("tiny-1")
    device = RtlDevice(image.config, image.dram.size, "ddr")
    cycles = set()
    for _ in range(3):
        device.write(0, image.dram)
        cycles.add(device.run(image.insn_addr, image.insn_count).cycles)
    assert len(cycles) == 1


def test_two_machines_in_one_process_do_not_disturb_each_other() -> None:
    images = [vector(name) for name in ("tiny-1", "int4-1")]
    devices = [RtlDevice(image.config, image.dram.size) for image in images]
    for image, device in zip(images, devices, strict=True):
        device.write(0, image.dram)
    for image, device in zip(images, devices, strict=True):
        device.run(image.insn_addr, image.insn_count)
    for image, device in zip(images, devices, strict=True):
        np.testing.assert_array_equal(device.read(0, image.dram.size), image.expected)


def test_a_fault_is_reported_and_the_next_program_runs() -> None:
    device = RtlDevice(TINY, 4096)
    waiting = isa.Gemm(uop_end=0, pop_prev=1)
    assert finish(device, waiting).fault == Fault("compute", 0, "deadlock")
    assert finish(device).fault is None


def test_tokens_left_are_counted() -> None:
    device = RtlDevice(TINY, 4096)
    give = isa.Gemm(uop_end=0, push_next=1)
    assert finish(device, give, give, give).tokens_left == {
        "load_to_compute": 0,
        "compute_to_load": 0,
        "compute_to_store": 3,
        "store_to_compute": 0,
    }


def test_scratchpads_keep_their_contents_from_run_to_run() -> None:
    device = RtlDevice(TINY, 4096)
    source = np.arange(TINY.out.element_bytes, dtype=np.uint8) + 1
    device.write(1024, source)
    place = 1024 // TINY.out.element_bytes
    load = isa.Load(memory=isa.Memory.ACC_8BIT, dram_base=place)
    store = isa.Store(dram_base=2 * place)
    finish(device, load)
    finish(device, store)
    np.testing.assert_array_equal(device.read(2048, source.size), source)


@pytest.mark.nightly  # compiles for half a minute; test_harness.py writes waves of a small design
def test_waves_are_written(tmp_path: Path) -> None:
    waves = tmp_path / "run.vcd"
    device = RtlDevice(TINY, 4096, waves=waves)
    finish(device)
    device.close()
    assert "m_axi_araddr" in waves.read_text()


def test_a_program_that_takes_too_long_is_a_timeout() -> None:
    device = RtlDevice(TINY, 4096)
    endless = isa.Alu(
        uop_end=1, iter_out=16383, iter_in=16383, alu_opcode=isa.AluOp.ADD, use_immediate=1
    )
    encode = isa.instruction_set(TINY).encode
    program = [endless, isa.Finish()]
    device.write(0, b"".join(encode(item).to_bytes(16, "little") for item in program))
    result = device.run(0, 2, time_limit=0.2)
    assert result.fault == Fault("compute", 0, "timeout")
    assert finish(device).fault is None


def test_a_stop_may_come_in_any_cycle_about_the_end_of_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = RtlDevice(TINY, 4096)
    cycles = finish(device).cycles
    assert cycles is not None
    ends = set()
    for polled in range(cycles - 12, cycles + 3):
        monkeypatch.setattr(type(device.machine), "cycles_per_poll", polled)
        result = device.run(0, 1, time_limit=-1)
        ends.add((result.fault and result.fault.cause, result.cycles))
    # Stopped, ended while it was being stopped, and ended before.
    assert ends == {("timeout", None), (None, None), (None, cycles)}


def test_an_unknown_memory_model_is_refused() -> None:
    with pytest.raises(DramError):
        RtlDevice(TINY, 4096, "slow")


def test_memory_is_rounded_up_and_its_bounds_are_checked() -> None:
    device = RtlDevice(TINY, 100)
    assert device.memory_bytes == 128
    with pytest.raises(ValueError, match="not within the device's 0x80 bytes of memory"):
        device.write(127, b"ab")
    with pytest.raises(ValueError, match="not within the device's 0x80 bytes of memory"):
        device.read(-1, 1)
