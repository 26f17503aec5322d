"""Several machines on one memory run programs at once as each does alone."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sim.machine.rtl.build import system_library
from amaranth_vta.sim.machine.rtl.engine import CompiledMachine, RtlDevice
from amaranth_vta.sim.machine.rtl.system import RtlSystem
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.programs.relocation import relocated
from amaranth_vta.sw.runtime.device import Fault, RunResult
from tests.support.golden import VECTORS

TINY = PRESETS["tiny"]
SYSTEM = SystemConfig(TINY, 2)
NAMES = ("tiny-1", "tiny-corners-1")
MEMORIES = ("ideal", "ddr", "random:1", "random:2", "random:3")


@cache
def images() -> list[ProgramImage]:
    """The programs of both machines, at consecutive addresses."""
    first, second = (ProgramImage.load(VECTORS / f"{name}.npz") for name in NAMES)
    to = -(-first.dram.size // 4096) * 4096
    return [relocated(first, 0, random.Random(0)), relocated(second, to, random.Random(1))]


def opened(dram: str, programs: list[ProgramImage]) -> RtlSystem:
    """A system with the programs in its memory, and the bases and limits of each."""
    system = RtlSystem(SYSTEM, max(image.origin + image.dram.size for image in programs), dram)
    for image, driver in zip(programs, system.drivers, strict=True):
        system.write(image.origin, image.dram)
        driver.set_bases(image.bases)
        driver.set_limits(image.limits)
    return system


def streams(programs: list[ProgramImage]) -> list[tuple[int, int]]:
    return [(image.insn_addr, image.insn_count) for image in programs]


@cache
def alone(number: int) -> tuple[RunResult, npt.NDArray[np.uint8]]:
    """One of `images` on a single machine: its result, and memory afterwards."""
    image = images()[number]
    device = RtlDevice(image.config, image.dram.size, origin=image.origin)
    device.write(image.origin, image.dram)
    device.set_bases(image.bases)
    device.set_limits(image.limits)
    result = device.run(image.insn_addr, image.insn_count)
    return result, device.read(image.origin, image.dram.size)


def check_memory(system: RtlSystem, number: int) -> None:
    image, (_, expected) = images()[number], alone(number)
    assert (expected != image.dram).any()
    np.testing.assert_array_equal(system.read(image.origin, image.dram.size), expected)


def check_bus_error(system: RtlSystem, faulty: int) -> None:
    """Run `images`: one machine reports a bus error, and the other one does its work."""
    result = system.run_all(streams(images()))
    fault = result.runs[faulty].fault
    assert fault is not None
    assert fault.cause == "bus_error"
    assert result.runs[1 - faulty].fault is None
    check_memory(system, 1 - faulty)


def check_next_runs(system: RtlSystem) -> None:
    result = system.run_all(streams(images()))
    assert [run.fault for run in result.runs] == [None, None]


def start(system: RtlSystem) -> None:
    """Launch `images`."""
    for driver, stream in zip(system.drivers, streams(images()), strict=True):
        driver.prepare(*stream)
    for driver in system.drivers:
        driver.start()


def counted(result: RunResult) -> dict[str, int]:
    """Counters that do not depend on time."""
    names = ("instructions", "uops", "elements", "bytes", "macs", "bytes_loaded", "bytes_stored")
    return {name: count for name, count in result.counters.items() if name.endswith(names)}


@pytest.mark.parametrize("dram", MEMORIES)
def test_two_programs_at_once_give_what_each_gives_alone(dram: str) -> None:
    programs = images()
    system = opened(dram, programs)
    result = system.run_all(streams(programs))
    for number, run in zip(range(2), result.runs, strict=True):
        expected, _ = alone(number)
        assert run.fault is None
        assert (run.tokens_left, counted(run)) == (expected.tokens_left, counted(expected))
        check_memory(system, number)
    assert result.cycles is not None
    longest = max(run.cycles or 0 for run in result.runs)
    # The second machine is launched a few register accesses later.
    assert longest <= result.cycles <= longest + 40


def test_machines_share_the_bus_in_time() -> None:
    """Two equal programs at once take more cycles than one, and much fewer than in sequence."""
    first = ProgramImage.load(VECTORS / "tiny-1.npz")
    programs = [relocated(first, at * (1 << 17), random.Random(at)) for at in range(2)]
    system = opened("ddr", programs)
    both = system.run_all(streams(programs)).cycles or 0
    one = opened("ddr", programs).run_all(streams(programs)[:1]).cycles or 0
    assert one < both < 1.3 * one


@pytest.mark.parametrize("faulty", [0, 1])
@pytest.mark.parametrize("dram", MEMORIES)
def test_a_fault_of_a_machine_leaves_the_other_alone(dram: str, faulty: int) -> None:
    """The program of one machine accesses memory beyond its limit; then it runs to its end."""
    programs = images()
    system = opened(dram, programs)
    driver, image = system.drivers[faulty], programs[faulty]
    driver.set_limits(dict.fromkeys(isa.LIMITED, 1))
    check_bus_error(system, faulty)
    # The system goes on.
    system.write(image.origin, image.dram)
    driver.set_limits(image.limits)
    check_next_runs(system)
    check_memory(system, faulty)


@pytest.mark.parametrize("faulty", [0, 1])
def test_a_bus_error_of_a_machine_leaves_the_other_alone(faulty: int) -> None:
    """Memory answers the accesses of one machine with errors."""
    programs = images()
    system = opened("ddr", programs)
    image = programs[faulty]
    middle = image.origin + image.dram.size // 2
    system.simulator.leave_out(range(middle, image.origin + image.dram.size))
    check_bus_error(system, faulty)


@pytest.mark.parametrize("dram", ["ddr", "random:4"])
def test_a_stop_of_a_machine_leaves_the_other_alone(dram: str) -> None:
    programs = images()
    system = opened(dram, programs)
    stopped, other = system.drivers
    start(system)
    system.simulator.advance(1000)
    stopped.stop()
    while not stopped.has_ended():
        system.simulator.advance(100)
    fault = stopped.outcome().fault
    assert isinstance(fault, Fault)
    assert fault.cause == "timeout"
    while not other.has_ended():
        system.simulator.advance(100)
    assert other.outcome().fault is None
    check_memory(system, 1)
    check_next_runs(system)


def test_a_stop_after_the_end_of_a_run_is_no_hang() -> None:
    """The host has not noticed the end when it asks for the stop, which clears `done`."""
    programs = images()
    system = opened("ddr", programs)
    start(system)
    first, other = system.drivers
    while not first.has_ended():
        system.simulator.advance(100)
    first.stop()
    assert first.has_ended()
    assert first.outcome().fault is None
    while not other.has_ended():
        system.simulator.advance(100)
    check_memory(system, 1)
    check_next_runs(system)


def test_a_run_beyond_its_time_is_stopped_on_all_machines() -> None:
    programs = images()
    system = opened("ddr", programs)
    system.simulator.cycles_per_poll = 500
    result = system.run_all(streams(programs), time_limit=0)
    assert result.cycles is None
    assert [run.fault and run.fault.cause for run in result.runs] == ["timeout", "timeout"]
    check_next_runs(system)


@pytest.mark.parametrize("after", [10, 300, 1500])
def test_a_reset_during_runs_leaves_no_trace(after: int) -> None:
    """A reset drops the accesses of both machines at any time; then both run from the beginning."""
    programs = images()
    system = opened("random:5", programs)
    start(system)
    system.simulator.advance(after)
    system.reset()
    for image, driver in zip(programs, system.drivers, strict=True):
        system.write(image.origin, image.dram)
        driver.set_bases(image.bases)
    check_next_runs(system)
    for number in range(2):
        check_memory(system, number)


def test_registers_are_side_by_side() -> None:
    memory = np.zeros(4096, np.uint8)
    simulator = CompiledMachine(system_library(SYSTEM), memory, memory_timing("ideal"))
    for number in range(2):
        simulator.write_register((number << 12) + 0x110, 0x1000 * (number + 1))
    assert [simulator.read_register((at << 12) + 0x110) for at in range(2)] == [0x1000, 0x2000]
    assert [simulator.read_register(at << 12) for at in range(2)] == [0x30415456] * 2
