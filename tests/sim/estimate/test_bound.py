"""No run on the RTL exceeds its bound with a memory that keeps the contract."""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.hw.config import DEFAULT, PRESETS
from amaranth_vta.hw.isa import Finish, Gemm, Load, Memory, Store
from amaranth_vta.hw.memory_timing import DDR, MemoryTiming
from amaranth_vta.measurements.networks import measure_network
from amaranth_vta.sim.devices import DeviceError, RunOptions, open_device
from amaranth_vta.sim.estimate.contract import ContractError, MemoryContract
from amaranth_vta.sim.estimate.library import Engine
from amaranth_vta.sim.machine.dram import DramError, memory_timing
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.programs.looping_programs import looping_program
from amaranth_vta.sim.programs.random_programs import legal_program
from tests.support.corners import CORNERS

MACHINES = PRESETS | CORNERS
CONTRACTS = (
    "latency=1",
    "latency=4,bandwidth=1/2",
    "latency=48,refresh=30/780",
    "latency=48,bandwidth=70/100",
    "latency=160,refresh=1/10",
)


def cycles_of(device_name: str, name: str, image: ProgramImage, dram: str) -> int:
    device = open_device(device_name, MACHINES[name], image.dram.size, dram=dram)
    device.write(0, image.dram)
    cycles = device.run(image.insn_addr, image.insn_count).cycles
    assert cycles is not None
    return cycles


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("name", ["tiny", "tiny-extended", "bus256-one-lane"])
def test_the_rtl_keeps_the_bound_with_random_memories(name: str, contract: str) -> None:
    for seed in range(3):
        image = legal_program(MACHINES[name], 300 + seed, length=20)
        dram = f"random:{seed},{contract}"
        assert cycles_of("rtl", name, image, dram) <= cycles_of("bound", name, image, dram), seed


@pytest.mark.parametrize("loads", [3, 8])
@pytest.mark.parametrize(("stall", "period"), [(300, 780), (40, 100)])
def test_pauses_are_those_of_the_periods_that_have_begun(
    loads: int, stall: int, period: int
) -> None:
    image = ProgramImage.assemble(
        PRESETS["tiny"],
        np.zeros(4096, np.uint8),
        2048,
        [*loads * [Load(memory=Memory.ACC, x_size=8, y_size=1)], Finish()],
    )
    contract = f"latency=4,refresh={stall}/{period}"
    others, bound = (
        cycles_of("bound", "tiny", image, f"random:1,{text}") for text in ("latency=4", contract)
    )
    runs = [cycles_of("rtl", "tiny", image, f"random:{seed},{contract}") for seed in range(8)]
    assert others < max(runs) <= bound <= others + -(-bound // period) * stall


def moves(count: int) -> ProgramImage:
    program = [
        item
        for _ in range(count)
        for item in (
            Load(memory=Memory.ACC, x_size=4, dram_base=8, push_next=1),
            Store(x_size=4, dram_base=0, pop_prev=1, push_prev=1),
            Load(memory=Memory.ACC, x_size=0, pop_next=1),
        )
    ]
    return ProgramImage.assemble(
        PRESETS["tiny"], np.zeros(4096, np.uint8), 2048, [*program, Finish()]
    )


@pytest.mark.parametrize(
    "omitted", ["latency=0,response=48,refresh=30/780", "latency=48,response=0,refresh=30/780"]
)
def test_a_bound_without_one_of_its_terms_is_exceeded(omitted: str) -> None:
    image, engine = moves(12), Engine(PRESETS["tiny"], DDR)
    bound = engine.bound(
        image.dram, image.insn_addr, image.insn_count, MemoryContract.parse(omitted)
    )
    assert bound is not None
    assert (
        bound < cycles_of("rtl", "tiny", image, "ddr") <= cycles_of("bound", "tiny", image, "ddr")
    )


def least_slack(name: str, image: ProgramImage, contract: str, timing: MemoryTiming) -> int:
    """Cycles from the retirement of an instruction, by the estimate, to its bound, at the least."""
    engine = Engine(MACHINES[name], timing)
    replay = engine.replay(image.dram, image.insn_addr, image.insn_count, with_records=True)
    retired = np.empty(image.insn_count, np.int64)
    promised = MemoryContract.parse(contract)
    assert engine.bound(image.dram, image.insn_addr, image.insn_count, promised, retired)
    return int((retired - replay.records["retired"]).min())


@pytest.mark.parametrize("name", ["tiny-extended", "bus256-one-lane", "pynq-extended"])
@pytest.mark.parametrize("latency", [1, 48, 200])
def test_instructions_of_loops_retire_by_their_bounds(name: str, latency: int) -> None:
    for seed in range(10):
        image = looping_program(MACHINES[name], seed, iterations=100)
        for shared in (False, True):
            for timing in (
                MemoryTiming(latency, shared),
                MemoryTiming(latency // 2, shared, refresh_period=780, refresh_stall=30),
            ):
                contract = f"latency={latency},refresh=30/780"
                assert least_slack(name, image, contract, timing) >= 0, (seed, timing)


@pytest.mark.parametrize("name", ["tiny-extended", "pynq-extended"])
def test_the_first_transfers_of_a_launch_retire_by_their_bounds(name: str) -> None:
    for seed in (*range(30), 2001, 2012):
        image = legal_program(PRESETS[name], seed, length=20)
        for latency in (0, 4, 48):
            timing = MemoryTiming(latency, shared=True)
            assert least_slack(name, image, f"latency={latency}", timing) >= 0, (seed, latency)


@pytest.mark.parametrize("latency", [1, 48])
def test_instructions_behind_long_loads_retire_by_their_bounds(latency: int) -> None:
    loads = [Load(memory=Memory.INP, y_size=1, x_size=200) for _ in range(3)]
    loops = [Gemm(uop_end=1, iter_out=1, iter_in=1) for _ in range(100)]
    program = ProgramImage.assemble(
        PRESETS[DEFAULT], np.zeros(1 << 14, np.uint8), 1 << 13, [*loads, *loops, Finish()]
    )
    slack = least_slack(DEFAULT, program, f"latency={latency}", MemoryTiming(latency, shared=True))
    assert 0 <= slack <= 60


@pytest.mark.parametrize(("short", "long"), [(3, 4), (4, 3), (6, 1)])
@pytest.mark.parametrize("latency", [48, 80, 126])
def test_short_bursts_among_long_ones_retire_by_their_bounds(
    short: int, long: int, latency: int
) -> None:
    pair = [Load(memory=Memory.UOP, x_size=1), Load(memory=Memory.INP, x_size=1)]
    longer = [Load(memory=Memory.ACC, x_size=4), Load(memory=Memory.WGT, x_size=1)]
    program = ProgramImage.assemble(
        PRESETS[DEFAULT],
        np.zeros(1 << 15, np.uint8),
        1 << 14,
        [*(15 * (short * pair + long * longer)), Finish()],
    )
    slack = least_slack(DEFAULT, program, f"latency={latency}", MemoryTiming(latency))
    assert 0 <= slack <= 40


@pytest.mark.parametrize(
    ("network", "most"),
    [("mlp", 1.03), ("bert-tiny", 1.1), ("digits", 1.09), ("keywords", 1.1), ("llama-tiny", 1.1)],
)
def test_the_bound_of_a_network_is_close(network: str, most: float) -> None:
    estimate, bound = (
        measure_network(network, PRESETS[DEFAULT], RunOptions(name, "ddr", timing_only=True))
        for name in ("estimate", "bound")
    )
    assert estimate.whole.cycles is not None
    assert bound.whole.cycles is not None
    assert estimate.whole.cycles <= bound.whole.cycles <= most * estimate.whole.cycles


def test_the_bound_of_a_program_that_waits_for_memory_is_close() -> None:
    image = moves(30)
    estimate, bound = (cycles_of(name, "tiny", image, "ddr") for name in ("estimate", "bound"))
    assert estimate <= bound <= 1.25 * estimate


def test_a_program_that_does_not_complete_has_no_bound() -> None:
    image = ProgramImage.assemble(
        PRESETS["tiny"], np.zeros(4096, np.uint8), 2048, [Store(pop_prev=1), Finish()]
    )
    device = open_device("bound", PRESETS["tiny"], image.dram.size)
    device.write(0, image.dram)
    result = device.run(image.insn_addr, image.insn_count)
    assert result.cycles is None
    assert result.fault is not None


def test_a_contract_is_read_and_printed() -> None:
    contract = MemoryContract.parse("latency=48,bandwidth=1/2,refresh=30/780")
    assert (contract.latency, contract.response) == (48, 48)
    assert (contract.scale, contract.rate, contract.credit) == (780, 360, 31)
    assert MemoryContract.parse(str(contract)) == contract
    assert str(MemoryContract.of(DDR)) == "latency=48,response=48,bandwidth=1/1,refresh=30/780"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no promise"),
        ("bandwidth=1/2", "lacks the latency"),
        ("latency=4,latency=5", "given twice"),
        ("latency=4,refresh=30", "lacks the period"),
        ("latency=-1", "no promise"),
        ("latency=4/5", "no promise"),
        ("latency=4,bandwidth=3/2", "at most as large"),
        ("latency=4,bandwidth=0/2", "never transfer"),
        ("latency=4,bandwidth=1/2,refresh=5/10", "never transfer"),
        ("latency=999999", "0 to 100,000"),
        ("latency=4,bandwidth=9998/9999,refresh=1/10000", "common multiple"),
    ],
)
def test_a_wrong_contract_gets_a_sentence(text: str, reason: str) -> None:
    with pytest.raises(ContractError, match=reason):
        MemoryContract.parse(text)


def test_only_the_bound_takes_a_contract() -> None:
    config = PRESETS["tiny"]
    with pytest.raises(DeviceError, match="takes no memory contract"):
        open_device("estimate", config, 64, memory_contract="latency=4")
    with pytest.raises(ContractError, match="keeps no contract"):
        open_device("bound", config, 64, dram="random:1")
    with pytest.raises(DramError, match="one latency"):
        memory_timing("random:1,latency=4,bandwidth=1/2,refresh=1/9")
    assert RunOptions("estimate").contract is None
    assert RunOptions("bound", memory_contract="latency=4").contract == MemoryContract(4, 4)


def test_random_memories_keep_their_contract() -> None:
    timing = memory_timing("random:5,latency=9,refresh=3/10")
    assert timing == MemoryTiming(9, timing.shared, 0, 0, 10, 3, 5)
    assert timing.is_limited
