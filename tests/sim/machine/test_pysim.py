"""The machine in Amaranth's simulator: the same results and cycles as in Verilator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.sim import Simulator

from amaranth_vta.hw import isa, registers
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sim.machine.pysim import InterpretedMachine, PysimDevice
from amaranth_vta.sim.machine.rtl.engine import RtlDevice
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sw.runtime.device import Device, Fault
from tests.support.golden import VECTORS

TINY = PRESETS["tiny"]


def _load_and_store(config: Config) -> list[isa.Instruction]:
    """A program that moves vectors through the accumulators, padded on one side."""
    address = 1024 // config.out.element_bytes
    return [
        isa.Load(memory=isa.Memory.ACC_8BIT, dram_base=address, x_size=9, x_pad_0=1, push_next=1),
        isa.Store(dram_base=2 * address, x_size=10, pop_prev=1),
        isa.Finish(),
    ]


def _run(device: Device, program: list[isa.Instruction]) -> int | None:
    encode = isa.instruction_set(device.config).encode
    device.write(0, b"".join(encode(item).to_bytes(16, "little") for item in program))
    result = device.run(0, len(program))
    assert result.fault is None
    return result.cycles


@pytest.fixture(scope="module")
def device() -> PysimDevice:
    """A device shared by all tests, since elaboration takes seconds; runs see leftovers of earlier
    runs.
    """
    return PysimDevice(TINY, 1 << 21)


@pytest.mark.parametrize(
    "name",
    [
        "tiny-1",
        "tiny-corners-1",
        pytest.param("tiny-2", marks=pytest.mark.nightly),
        pytest.param("tiny-corners-2", marks=pytest.mark.nightly),
    ],
)
def test_a_vector_gives_what_is_expected(name: str, device: PysimDevice) -> None:
    image = ProgramImage.load(VECTORS / f"{name}.npz")
    assert image.config == device.config
    device.write(0, image.dram)
    assert device.run(image.insn_addr, image.insn_count).fault is None
    np.testing.assert_array_equal(device.read(0, image.dram.size), image.expected)


def test_a_device_with_another_engine_takes_over_no_machine_and_the_same_cycles(
    device: PysimDevice,
) -> None:
    PysimDevice(TINY, 4096).close()
    made = []

    def make(module: Module) -> Simulator:
        made.append(module)
        return Simulator(module)

    other = PysimDevice(TINY, 4096, make_simulator=make)
    assert len(made) == 1
    assert _run(other, _load_and_store(TINY)) == _run(device, _load_and_store(TINY))


@pytest.mark.parametrize(
    "dram",
    [
        "ideal",
        "random:1",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("ddr", "random:2", "random:3")
        ),
    ],
)
def test_a_run_takes_the_cycles_that_the_compiled_machine_takes(dram: str) -> None:
    cycles, memories = [], []
    for make in (PysimDevice, RtlDevice):
        device = make(TINY, 4096, dram)
        device.write(1024, np.arange(64, dtype=np.uint8))
        cycles.append([_run(device, _load_and_store(TINY)) for _ in range(2)])
        memories.append(device.read(0, 4096))
    assert cycles[0] == cycles[1]
    np.testing.assert_array_equal(memories[0], memories[1])
    stored = memories[0][2048 : 2048 + 10 * TINY.out.element_bytes]
    assert not stored[: TINY.out.element_bytes].any()
    assert stored[TINY.out.element_bytes :].tolist() == list(range(9 * TINY.out.element_bytes))


def test_a_fault_is_reported_and_the_next_program_runs() -> None:
    device = PysimDevice(TINY, 4096)
    encode = isa.instruction_set(TINY).encode
    device.write(0, encode(isa.Finish(pop_prev=1)).to_bytes(16, "little"))
    assert device.run(0, 1).fault == Fault("compute", 0, "deadlock")
    _run(device, [isa.Finish()])


def simulation_of(device: PysimDevice) -> object:
    assert isinstance(device.machine, InterpretedMachine)
    return device.machine._simulation


def test_a_device_reuses_the_machine_of_a_deleted_device_in_its_initial_state() -> None:
    program = _load_and_store(TINY)
    device = PysimDevice(TINY, 4096)
    simulation = simulation_of(device)
    cycles = _run(device, program)
    encode = isa.instruction_set(TINY).encode
    # Leaves a token, a fault and a limit.
    left = [isa.Load(memory=isa.Memory.INP, push_next=1), isa.Finish(pop_next=1)]
    device.write(0, b"".join(encode(item).to_bytes(16, "little") for item in left))
    device.set_limits({isa.Memory.INP: 1})
    assert device.run(0, 2).fault is not None
    beside = PysimDevice(TINY, 4096)
    assert simulation_of(beside) is not simulation
    del device
    taken = PysimDevice(TINY, 4096)
    assert simulation_of(taken) is simulation
    words = registers.COUNTERS_END // registers.WORD_BYTES
    assert taken.read_words(0, words) == beside.read_words(0, words)
    assert _run(taken, program) == cycles


def test_waves_are_written(tmp_path: Path) -> None:
    device = PysimDevice(TINY, 4096, waves=tmp_path / "run.vcd")
    _run(device, [isa.Finish()])
    device.close()
    assert "$enddefinitions" in (tmp_path / "run.vcd").read_text()
