"""The machine's counters, on programs whose counts are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import Alu, AluOp, Finish, Gemm, Instruction, Load, Memory, Store
from amaranth_vta.hw.registers import COUNTERS
from amaranth_vta.hw.timing import BURSTS_IN_FLIGHT
from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sim.machine.pysim import PysimDevice
from amaranth_vta.sim.machine.rtl.engine import RtlDevice
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.programs.random_programs import random_program
from tests.support.seeds import each_seed

TINY = PRESETS["tiny"]
PROGRAM = 0x8000


def counters_of(*instructions: Instruction, dram: str = "ideal") -> dict[str, int]:
    """The counters of the second of two runs, so that leftovers of the first run would show."""
    device = RtlDevice(TINY, 0x20000, dram=dram)
    encode = isa.instruction_set(TINY).encode
    device.write(PROGRAM, b"".join(encode(item).to_bytes(16, "little") for item in instructions))
    device.run(PROGRAM, len(instructions))
    result = device.run(PROGRAM, len(instructions))
    assert result.fault is None
    assert result.counters["cycles"] <= (result.cycles or 0) <= result.counters["cycles"] + 4
    return result.counters


PROGRAM_OF_ALL = (
    Load(memory=Memory.UOP, x_size=1),
    Load(memory=Memory.INP, x_size=16, y_size=1, x_stride=16),
    Load(memory=Memory.WGT, x_size=4, y_size=1, x_stride=4, push_next=1),
    Gemm(uop_end=1, iter_out=3, iter_in=5, reset=1),
    Gemm(uop_end=1, iter_out=7, iter_in=9, pop_prev=1),
    Alu(uop_end=1, iter_out=2, iter_in=4, alu_opcode=AluOp.ADD, use_immediate=1, push_next=1),
    Store(x_size=16, y_size=2, x_stride=16, pop_prev=1),
    Finish(),
)


@pytest.mark.parametrize("dram", ["ideal", "ddr", "random:3"])
def test_instructions_micro_ops_and_elements_are_counted_exactly(dram: str) -> None:
    counters = counters_of(*PROGRAM_OF_ALL, dram=dram)
    expected = {
        "load_instructions": 2,
        "compute_load_instructions": 1,
        "gemm_instructions": 2,
        "alu_instructions": 1,
        "store_instructions": 1,
        "gemm_uops": 63,
        "macs": 63 * TINY.macs_per_cycle,
        "alu_uops": 8,
        "inp_elements": 16,
        "wgt_elements": 4,
        "uop_elements": 1,
        "acc_elements": 0,
        "acc_8bit_elements": 0,
        "out_elements": 32,
        "read_bursts": 4,
        "write_bursts": 1,
    }
    assert {name: counters[name] for name in expected} == expected


def test_busy_and_waiting_cycles_fit_into_the_run() -> None:
    counters = counters_of(*PROGRAM_OF_ALL, dram="ddr")
    cycles = counters["cycles"]
    assert 15 + 63 <= counters["gemm_busy"] < 15 + 63 + 40
    assert 8 <= counters["alu_busy"] < 8 + 29
    assert 48 < counters["compute_load_busy"] < 48 + 20
    units = sum(counters[f"{unit}_busy"] for unit in ("gemm", "alu", "compute_load"))
    assert units + counters["compute_waits_for_load"] <= cycles
    assert counters["store_busy"] + counters["store_waits_for_compute"] <= cycles
    assert counters["store_waits_for_compute"] > counters["gemm_busy"]
    assert counters["load_waits_for_compute"] == counters["compute_waits_for_store"] == 0
    assert 48 < counters["load_waits_for_memory"] < counters["load_busy"]
    assert 48 < counters["fetch_waits_for_memory"] < 48 + 20
    assert counters["fetch_waits_for_modules"] == 0


def test_waiting_for_a_token_is_counted_in_the_module_that_waits() -> None:
    counters = counters_of(
        Load(memory=Memory.INP, x_size=16, y_size=4, x_stride=16, push_next=1),
        Gemm(uop_end=0, pop_prev=1),
        Finish(),
        dram="ddr",
    )
    # A latency of 48 cycles, and 32 words.
    assert 80 < counters["compute_waits_for_load"] < 120
    assert counters["gemm_uops"] == 0


def test_fetch_waits_for_modules_whose_queue_is_full() -> None:
    endless = Gemm(uop_end=1, iter_out=100, iter_in=10)
    counters = counters_of(Load(memory=Memory.UOP, x_size=1), *[endless] * 80, Finish())
    assert counters["fetch_waits_for_modules"] > 10_000


def test_latencies_are_those_of_the_memory() -> None:
    words = 32 * TINY.out.element_bytes // 8
    for dram, latency in (("ideal", 4), ("ddr", 48)):
        counters = counters_of(*PROGRAM_OF_ALL, dram=dram)
        assert latency + words <= counters["write_latency"] <= latency + words + 4
        assert 4 * latency < counters["read_latency"] < 4 * (latency + 60)


@pytest.mark.parametrize("dram", ["ddr", "ideal"])
def test_latencies_add_up_with_as_many_bursts_in_flight_as_there_can_be(dram: str) -> None:
    """Each of the 48 rows is a burst of one word; rows are not adjacent."""
    rows = {"x_size": 1, "y_size": 48, "x_stride": 9}
    latency, one = memory_timing(dram).latency, Load(memory=Memory.UOP, x_size=1)
    counters = counters_of(one, Load(memory=Memory.INP, **rows), Finish(), dram=dram)
    fewer = counters_of(one, Finish(), dram=dram)
    assert counters["read_bursts"] - fewer["read_bursts"] == 48
    # A burst waits one more word time for each burst in front of it.
    most = latency + 4 + 2 * BURSTS_IN_FLIGHT
    assert 48 * latency < counters["read_latency"] - fewer["read_latency"] < 48 * most
    counters = counters_of(Store(**rows), Finish(), dram=dram)
    assert counters["write_bursts"] == 48
    assert 48 * latency < counters["write_latency"] < 48 * most
    if dram == "ddr":
        in_flight = counters["write_latency"] / counters["store_busy"]
        assert BURSTS_IN_FLIGHT - 1 < in_flight <= BURSTS_IN_FLIGHT


def test_a_load_that_overlaps_a_gemm_is_counted() -> None:
    both = counters_of(
        Load(memory=Memory.UOP, x_size=1),
        Gemm(uop_end=1, iter_out=100, iter_in=3),
        Load(memory=Memory.INP, x_size=16, y_size=4, x_stride=16),
        Finish(),
    )
    assert 20 < both["load_and_gemm_busy"] <= both["load_busy"] < both["gemm_busy"]
    after = counters_of(
        Load(memory=Memory.UOP, x_size=1),
        Load(memory=Memory.INP, x_size=16, y_size=4, x_stride=16, push_next=1),
        Gemm(uop_end=1, iter_out=100, iter_in=3, pop_prev=1),
        Finish(),
    )
    assert after["load_and_gemm_busy"] == 0


@pytest.mark.parametrize("name", ["tiny", "tiny-extended"])
@each_seed(range(3))
def test_the_model_counts_the_same_of_what_does_not_depend_on_time(name: str, seed: int) -> None:
    config = PRESETS[name]
    image = random_program(config, seed, length=40)
    counted = []
    for device in (
        RtlDevice(config, image.dram.size, dram="random:1"),
        FunctionalDevice(config, image.dram.size),
    ):
        device.write(0, image.dram)
        counted.append(device.run(image.insn_addr, image.insn_count).counters)
    machine, model = counted
    assert sum(model.values()) > 0
    assert model == {name: machine[name] for name in model}
    assert {counter.name for counter in COUNTERS if not counter.time} <= model.keys()


def test_both_simulators_count_the_same() -> None:
    image = random_program(TINY, 5, length=12)
    counted = []
    for device in (RtlDevice(TINY, image.dram.size), PysimDevice(TINY, image.dram.size)):
        device.write(0, image.dram)
        counted.append(device.run(image.insn_addr, image.insn_count).counters)
    assert counted[0] == counted[1]


def test_a_machine_without_counters_counts_its_cycles_and_nothing_else() -> None:
    image = random_program(TINY, 5, length=12)
    results, memories = [], []
    for device in (
        RtlDevice(TINY, image.dram.size),
        PysimDevice(replace(TINY, counters=0), image.dram.size),
    ):
        device.write(0, image.dram)
        results.append(device.run(image.insn_addr, image.insn_count))
        memories.append(bytes(device.read(0, image.dram.size)))
    counted, uncounted = results
    assert uncounted.counters == {"cycles": counted.counters["cycles"]}
    assert (uncounted.cycles, uncounted.fault) == (counted.cycles, counted.fault)
    assert memories[0] == memories[1]
