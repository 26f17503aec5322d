"""The machine always stops cleanly, reports why, and runs the next program."""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.registers import COUNTERS, COUNTERS_OFFSET, REGISTERS, WORD_BYTES, Access
from amaranth_vta.sim.machine.dram import MemoryTiming, memory_timing
from amaranth_vta.sim.machine.host import SimulatedDevice
from amaranth_vta.sim.machine.pysim import PysimDevice
from amaranth_vta.sim.machine.rtl.engine import RtlDevice
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.programs.random_programs import random_program
from amaranth_vta.sw.runtime.device import Fault
from amaranth_vta.sw.runtime.driver import MismatchError
from tests.support.register_bench import RegisterBench

TINY = PRESETS["tiny"]
MEMORY = 0x20000
PROGRAM = 0x8000
GOOD = random_program(TINY, seed=3, length=20)


class Bench(RegisterBench):
    """A small machine with a small memory."""

    def __init__(self, timing: MemoryTiming) -> None:
        super().__init__(TINY, MEMORY, timing)


def runs_correctly(device: SimulatedDevice) -> bool:
    device.write(0, GOOD.dram)
    assert device.run(GOOD.insn_addr, GOOD.insn_count).fault is None
    assert GOOD.expected is not None
    return np.array_equal(device.read(0, GOOD.dram.size), GOOD.expected)


@pytest.mark.parametrize("dram", ["ideal", "ddr", "random:1", "random:4"])
def test_a_reset_in_the_middle_of_bursts_completes_them_and_the_next_program_runs(
    dram: str,
) -> None:
    bench = Bench(memory_timing(dram))
    stopped = set()
    for cycles in range(1, 400, 13):
        bench.put_image(random_program(TINY, seed=cycles, length=40))
        bench.command("launch")
        bench.settle(cycles)
        bench.command("reset")
        bench.settle(3000)
        assert bench.machine.quiet
        assert not bench.status & {"busy", "draining"}
        stopped.add("stopped" in bench.status)
        assert runs_correctly(bench)
    assert True in stopped


def test_a_stopped_run_says_where_it_was() -> None:
    bench = Bench(MemoryTiming())
    endless = isa.Alu(uop_end=1, iter_out=16383, iter_in=16383, alu_opcode=2, use_immediate=1)
    bench.put(PROGRAM, [isa.Load(memory=isa.Memory.UOP, x_size=1), endless, isa.Finish()])
    bench.command("launch")
    bench.settle(500)
    assert bench.status == {"busy"}
    bench.command("reset")
    bench.settle(50)
    assert bench.status == {"done", "stopped"}
    assert bench.peek("FAULT") & 7 == 0
    assert bench.place == ("compute", 1)
    bench.command("reset")
    assert bench.status == set()
    assert runs_correctly(bench)


@pytest.mark.parametrize(
    ("transfer", "counter"),
    [
        (isa.Load(memory=isa.Memory.INP, x_size=1, y_size=60, x_stride=50), "read_bursts"),
        (isa.Load(memory=isa.Memory.ACC, x_size=1, y_size=60, x_stride=50), "read_bursts"),
        (isa.Store(x_size=1, y_size=60, x_stride=50), "write_bursts"),
    ],
)
def test_no_access_begins_after_a_stop(transfer: isa.Instruction, counter: str) -> None:
    bench = Bench(MemoryTiming(latency=200))
    bench.put(PROGRAM, [transfer, transfer, isa.Finish()])
    bench.command("launch")
    bench.settle(300)
    bench.command("reset")
    begun = bench.peek(counter.upper())
    bench.settle(5000)
    assert bench.status == {"done", "stopped"}
    # Beats may still be in the bus registers.
    assert begun <= bench.peek(counter.upper()) <= begun + 2
    assert begun < 60
    assert runs_correctly(bench)


@pytest.mark.parametrize("name", ["UOP", "INP", "WGT", "ACC", "ACC_8BIT", "OUT"])
def test_an_error_of_any_single_beat_is_reported(name: str) -> None:
    """Covers each beat of an element that spans several beats, in both bursts."""
    memory = isa.Memory[name]
    rows = {"x_size": 3, "y_size": 2, "x_stride": 64}
    transfer = isa.Load(memory=memory, **rows) if name != "OUT" else isa.Store(**rows)
    bench = Bench(MemoryTiming())
    size, step = TINY.memory(memory).element_bytes, TINY.bus_bytes
    for row in range(2):
        first, end = (row * 64 * size, (row * 64 + 3) * size)
        for word in range(first // step * step, end, step):
            bench.put(PROGRAM, [isa.Load(memory=isa.Memory.INP, x_size=0), transfer, isa.Finish()])
            bench.machine.leave_out(range(word, word + step))
            bench.command("launch")
            bench.settle()
            module = isa.module_of(transfer).name.lower()
            assert bench.fault == Fault(module, 1, "bus_error"), word
            bench.machine.leave_out(range(0))
            bench.command("reset")
            bench.settle()
    assert runs_correctly(bench)


def test_a_launch_while_busy_is_refused_and_harms_nothing() -> None:
    bench = Bench(memory_timing("ddr"))
    bench.put_image(GOOD)
    bench.command("launch")
    bench.settle(60)
    bench.command("launch")
    assert bench.status == {"busy", "refused"}
    bench.settle()
    assert bench.status == {"done", "refused"}
    assert GOOD.expected is not None
    assert np.array_equal(bench.read(0, GOOD.dram.size), GOOD.expected)
    assert runs_correctly(bench)
    assert bench.status == {"done"}


def test_a_launch_together_with_a_reset_is_refused() -> None:
    bench = Bench(MemoryTiming())
    bench.put_image(GOOD)
    bench.command("launch", "reset")
    assert bench.status == {"refused"}
    bench.settle(2000)
    assert bench.status == {"refused"}
    bench.machine.reset()
    assert bench.status == set()
    assert runs_correctly(bench)


def test_the_interrupt_line_is_masked() -> None:
    bench = Bench(MemoryTiming())
    enable = {part.name: 1 << part.offset for part in REGISTERS["INTERRUPT_ENABLE"].bits}
    bench.put(PROGRAM, [isa.Finish(), isa.Finish()])  # ends at a fault
    for count, mask, interrupts in (
        (2, 0, False),
        (2, enable["fault"], True),
        (2, enable["done"], True),
        (1, enable["fault"], False),
        (1, enable["done"], True),
    ):
        bench.poke("INTERRUPT_ENABLE", 0)
        bench.poke("INSN_ADDR", PROGRAM + 16 * (2 - count))
        bench.poke("INSN_COUNT", count)
        bench.poke("INTERRUPT_ENABLE", mask)
        bench.command("launch")
        assert bench.machine.advance(500) == interrupts
        assert "done" in bench.status


def test_an_interrupt_is_acknowledged_by_writing_1() -> None:
    bench = Bench(MemoryTiming())
    done, fault = (1 << part.offset for part in REGISTERS["INTERRUPT_PENDING"].bits)
    bench.put(PROGRAM, [isa.Finish(), isa.Finish()])  # ends at a fault
    bench.poke("INTERRUPT_ENABLE", done | fault)
    for _ in range(2):
        bench.command("launch")
        assert bench.machine.advance(500)
        assert bench.peek("INTERRUPT_PENDING") == done | fault
        bench.poke("INTERRUPT_PENDING", done)
        assert bench.peek("INTERRUPT_PENDING") == fault
        assert bench.machine.advance(1)  # the pending fault holds the line
        bench.poke("INTERRUPT_PENDING", fault)
        assert not bench.machine.advance(100)
        assert bench.status == {"done", "fault"}
    bench.command("launch")
    assert bench.machine.advance(500)
    bench.command("reset")
    assert bench.peek("INTERRUPT_PENDING") == 0
    assert not bench.machine.advance(100)
    # An interrupt that is enabled after its event raises the line too.
    bench.poke("INTERRUPT_ENABLE", 0)
    bench.command("launch")
    assert not bench.machine.advance(500)
    bench.poke("INTERRUPT_ENABLE", fault)
    assert bench.machine.advance(1)


def test_a_memory_that_never_answers_is_a_timeout_and_the_reset_line_helps() -> None:
    bench = Bench(MemoryTiming(latency=1 << 40))
    bench.poke("TIMEOUT", 200)
    result = bench.run(PROGRAM, 3)
    assert result.fault == Fault("fetch", 0, "timeout")
    assert result.cycles is not None
    assert 200 < result.cycles < 230
    assert bench.status == set()  # the reset line has been used
    bench.poke("TIMEOUT", 0)
    bench.put(PROGRAM, [isa.Finish()])
    bench.command("launch")
    bench.settle(5000)
    assert bench.status == {"busy"}
    # Silent cycles before this write count.
    bench.poke("TIMEOUT", 1000)
    bench.settle(50)
    assert bench.status == {"done", "fault", "draining"}


@pytest.mark.parametrize("cycles", [3, 40, 200, 700])
def test_registers_that_change_while_a_program_runs_are_for_the_next_one(cycles: int) -> None:
    chance = np.random.default_rng(cycles)
    bench = Bench(memory_timing("ddr"))
    bench.poke("TIMEOUT", 2000)
    bench.put_image(GOOD)
    bench.command("launch")
    bench.settle(cycles)
    kept = {}
    for register in REGISTERS.values():
        if register.access is Access.READ_WRITE and register.name != "TIMEOUT":
            kept[register.name] = bench.peek(register.name)
            bench.poke(register.name, int(chance.integers(1 << register.width, dtype=np.uint64)))
    written = {name: bench.peek(name) for name in kept}
    bench.settle()
    assert bench.status == {"done"}
    assert GOOD.expected is not None
    assert np.array_equal(bench.read(0, GOOD.dram.size), GOOD.expected)
    assert {name: bench.peek(name) for name in kept} == written
    for name, value in kept.items():
        bench.poke(name, value)
    assert runs_correctly(bench)


def test_answers_that_come_after_a_timeout_do_no_harm() -> None:
    bench = Bench(MemoryTiming(latency=700))
    bench.put_image(GOOD)
    bench.poke("TIMEOUT", 300)
    bench.command("launch")
    bench.settle(400)
    assert bench.status == {"done", "fault", "draining"}
    assert bench.peek("FAULT") & 7 == isa.Cause.TIMEOUT
    bench.command("launch")
    assert bench.status == {"done", "fault", "draining", "refused"}
    bench.settle(1000)
    assert bench.machine.quiet
    assert bench.status == {"done", "fault", "refused"}
    bench.poke("TIMEOUT", 800)
    assert runs_correctly(bench)


@pytest.mark.parametrize(
    ("waits", "module"),
    [
        (isa.Load(memory=isa.Memory.INP, x_size=8, y_size=16, x_stride=16), "load"),
        (isa.Load(memory=isa.Memory.ACC, x_size=8, y_size=16, x_stride=16), "compute"),
        (isa.Store(x_size=8, y_size=16, x_stride=16), "store"),
    ],
)
def test_a_timeout_is_of_the_module_that_waits(waits: isa.Instruction, module: str) -> None:
    # After the launch, memory responds for 60 cycles, enough for fetch, and then stalls for long.
    bench = Bench(MemoryTiming(refresh_period=3000, refresh_stall=2940))
    bench.put(PROGRAM, [isa.Load(memory=isa.Memory.INP, x_size=0), waits, isa.Finish()])
    bench.poke("TIMEOUT", 400)
    result = bench.run(PROGRAM, 3)
    assert result.fault == Fault(module, 1, "timeout")
    bench.poke("TIMEOUT", 10_000)
    assert runs_correctly(bench)


def test_a_misaligned_program_is_a_bad_stream_and_the_next_one_runs() -> None:
    bench = Bench(memory_timing("random:2"))
    assert bench.run(PROGRAM + 8, 1).fault == Fault("fetch", 0, "bad_stream")
    assert runs_correctly(bench)


def test_counters_are_read_while_a_program_runs_and_start_again_after_it_is_stopped() -> None:
    bench = Bench(MemoryTiming())
    endless = isa.Alu(uop_end=1, iter_out=16383, iter_in=16383, alu_opcode=2, use_immediate=1)
    bench.put(PROGRAM, [isa.Load(memory=isa.Memory.UOP, x_size=1), endless, isa.Finish()])
    bench.command("launch")
    bench.settle(500)
    first = bench.peek("ALU_BUSY")
    bench.settle(300)
    # The sums are updated round-robin: each lags by one round at most.
    behind = 1 << (len(COUNTERS) - 1).bit_length()
    assert 300 < first < first + 300 - behind <= bench.peek("ALU_BUSY") < 1000
    bench.command("reset")
    assert runs_correctly(bench)
    fresh = Bench(MemoryTiming())
    fresh.write(0, GOOD.dram)
    expected = fresh.run(GOOD.insn_addr, GOOD.insn_count).counters
    bench.write(0, GOOD.dram)
    assert bench.run(GOOD.insn_addr, GOOD.insn_count).counters == expected


def test_counters_that_are_read_as_soon_as_a_run_ends_are_complete() -> None:
    bench = Bench(memory_timing("ideal"))
    bench.poke("INTERRUPT_ENABLE", 1)
    for number in range(len(COUNTERS)):
        bench.put_image(GOOD)
        bench.command("launch")
        assert bench.machine.advance(100_000)
        at_once = bench.read_words(COUNTERS_OFFSET + 2 * WORD_BYTES * number, 2)
        bench.settle(1000)
        assert bench.read_words(COUNTERS_OFFSET + 2 * WORD_BYTES * number, 2) == at_once


def test_each_memory_is_found_at_its_base() -> None:
    bases = {"UOP": 0x1000, "INP": 0x2040, "WGT": 0x3000, "ACC": 0x40C0, "OUT": 0x5000}
    chance = np.random.default_rng(0)
    dram = chance.integers(0, 256, 0x6000, np.uint8)
    dram[bases["UOP"] : bases["UOP"] + 4] = 0

    def program(starts: dict[str, int]) -> list[isa.Instruction]:
        """The program for a machine whose base registers are 0; ``starts`` maps memories to byte
        addresses.
        """

        def load(memory: isa.Memory, base: str, **fields: int) -> isa.Load:
            start = starts[base] // TINY.memory(memory).element_bytes
            return isa.Load(memory=memory, dram_base=start, **fields)

        store = starts["OUT"] // TINY.out.element_bytes
        return [
            load(isa.Memory.INP, "INP"),
            load(isa.Memory.WGT, "WGT", push_next=1),
            load(isa.Memory.UOP, "UOP"),
            load(isa.Memory.ACC, "ACC"),
            load(isa.Memory.ACC_8BIT, "OUT", sram_base=1),
            isa.Gemm(uop_end=1, pop_prev=1, push_next=1),
            isa.Store(dram_base=store + 4, x_size=2, pop_prev=1),
            isa.Finish(),
        ]

    found = []
    for device in (Bench(MemoryTiming()), FunctionalDevice(TINY, MEMORY)):
        device.write(0, dram)
        if isinstance(device, Bench):
            for name, address in bases.items():
                device.poke(f"{name}_BASE", address)
            device.put(PROGRAM, program(dict.fromkeys(bases, 0)))
        else:
            encode = isa.instruction_set(TINY).encode
            words = [encode(item).to_bytes(16, "little") for item in program(bases)]
            device.write(PROGRAM, b"".join(words))
        assert device.run(PROGRAM, 8).fault is None
        found.append(device.read(0, 0x6000))
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], dram)


@pytest.mark.parametrize(
    ("limited", "transfer"),
    [
        ("UOP", isa.Load(memory=isa.Memory.UOP, dram_base=8, x_size=4)),
        ("INP", isa.Load(memory=isa.Memory.INP, dram_base=2, x_size=2, y_size=3, x_stride=4)),
        ("WGT", isa.Load(memory=isa.Memory.WGT, x_size=12, y_pad_0=1)),
        ("ACC", isa.Load(memory=isa.Memory.ACC, dram_base=11)),
        ("OUT", isa.Load(memory=isa.Memory.ACC_8BIT, x_size=6, y_size=2, x_stride=6)),
        ("OUT", isa.Store(dram_base=6, x_size=2, y_size=5, x_stride=1)),
    ],
)
def test_a_transfer_over_its_limit_is_not_begun(limited: str, transfer: isa.Instruction) -> None:
    """The last element that each transfer accesses is number 11."""
    bench = Bench(MemoryTiming())
    bench.write(0, np.arange(4096, dtype=np.uint32))
    bench.put(PROGRAM, [transfer, isa.Finish()])
    bursts = []
    for limit in (0, 12, 11, 1):
        for name in ("UOP", "INP", "WGT", "ACC", "OUT"):
            bench.poke(f"{name}_LIMIT", 1)
        bench.poke(f"{limited}_LIMIT", limit)
        assert bench.peek(f"{limited}_LIMIT") == limit
        before = bench.read(0, PROGRAM)
        result = bench.run(PROGRAM, 2)
        faulty = limit in (11, 1)
        assert (result.fault is not None) == faulty
        if result.fault is not None:
            assert (result.fault.instruction, result.fault.cause) == (0, "bus_error")
            assert np.array_equal(bench.read(0, PROGRAM), before)
        bursts.append(bench.peek("READ_BURSTS") + bench.peek("WRITE_BURSTS"))
    # Only the burst of fetch remains.
    assert bursts[0] == bursts[1] > bursts[2] == bursts[3] == 1


@pytest.mark.parametrize("device", [RtlDevice, PysimDevice])
def test_software_refuses_a_machine_of_another_configuration(
    device: type[RtlDevice] | type[PysimDevice],
) -> None:
    machine = device(TINY, 4096)
    machine.config = PRESETS["batch2"]
    with pytest.raises(MismatchError, match="the machine has LOG_BATCH = 0, but .* for 1"):
        machine.attach(machine.machine)
