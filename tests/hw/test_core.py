"""The core against the functional model: small programs, and how a run ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Value

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.core import Core
from amaranth_vta.hw.isa import (
    LIMITED,
    QUEUE_DEPTH,
    Cause,
    Finish,
    Gemm,
    Instruction,
    Load,
    Memory,
    Module,
    Store,
    instruction_set,
)
from amaranth_vta.hw.microarchitecture import Microarchitecture, Storage
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.programs.faults import FAULT_KINDS, random_faulty_program
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.programs.random_programs import random_program
from amaranth_vta.sim.testbench.amaranth import BurstMemory, pauses, shared, simulate
from amaranth_vta.sw.runtime.device import limit_of

TINY = PRESETS["tiny"]


class Report:
    """How a run ended, and the final memory."""

    def __init__(self) -> None:
        self.cycles = 0
        self.fault: tuple[str, int, str] | None = None
        self.tokens: dict[str, int] = {}


def run(
    images: list[ProgramImage], probability: float, choices: Microarchitecture | None = None
) -> list[tuple[Report, np.ndarray]]:
    """Run the programs on one core in order, each with fresh memory."""
    core = shared(Core, TINY, choices=choices)
    size = max(image.dram.size for image in images)
    memory = BurstMemory(np.zeros(size, np.uint8), pause=pauses(probability, 1))
    reports: list[tuple[Report, np.ndarray]] = []

    async def drive(ctx: Any) -> None:
        ends = ctx.tick().sample(core.done, *map(Value.cast, (core.fault, core.tokens)))
        for image in images:
            memory.contents[: image.dram.size] = image.dram
            ctx.set(core.insn_addr, image.insn_addr)
            ctx.set(core.insn_count, image.insn_count)
            limits = {item.name.lower(): limit_of(image.limits, item) for item in LIMITED}
            ctx.set(core.limits, limits)
            ctx.set(core.launch, 1)
            await ctx.tick()
            ctx.set(core.launch, 0)
            report = Report()
            done = False
            while not done:
                assert report.cycles < 20_000, "the core hangs"
                _, _, done, *bits = await ends
                report.cycles += 1
            fault = core.fault.shape().from_bits(bits[0])
            tokens = core.tokens.shape().from_bits(bits[1])
            assert not ctx.get(core.counters_ready), "what came last has not been added up"
            if fault.cause:
                report.fault = (
                    Module(fault.module).name.lower(),
                    fault.index,
                    Cause(fault.cause).name.lower(),
                )
            report.tokens = {name: getattr(tokens, name) for name, _ in core.tokens.shape()}
            reports.append((report, memory.contents[: image.dram.size].copy()))

    async def reads(ctx: Any) -> None:
        await memory.serve_reads(ctx, core.read)

    async def writes(ctx: Any) -> None:
        await memory.serve_writes(ctx, core.write)

    simulate(core, drive, background=[reads, writes])
    return reports


def image_of(*instructions: Instruction) -> ProgramImage:
    encode = instruction_set(TINY).encode
    code = b"".join(encode(instruction).to_bytes(16, "little") for instruction in instructions)
    dram = np.zeros(4096 + len(code), np.uint8)
    dram[4096:] = np.frombuffer(code, np.uint8)
    return ProgramImage(TINY, dram, 4096, len(instructions), None)


@pytest.mark.parametrize("probability", [0, 0.3])
def test_random_programs_leave_what_the_model_leaves(probability: float) -> None:
    images = [random_program(TINY, seed, length=12) for seed in range(4)]
    for image, (report, contents) in zip(images, run(images, probability), strict=True):
        assert report.fault is None
        assert image.expected is not None
        assert np.array_equal(contents, image.expected)


@pytest.fixture(scope="module")
def derived() -> tuple[ProgramImage, int]:
    """A program, and its cycles on the machine with the derived choices."""
    image = random_program(TINY, 1, length=12)
    ((report, _),) = run([image], 0)
    return image, report.cycles


@pytest.mark.parametrize(
    # Latencies of queues are hidden behind other work of this program.
    ("name", "value", "costs_cycles"),
    [
        ("instruction_queues", Storage.LUTS, False),
        *(
            pytest.param(*choice, marks=pytest.mark.nightly)
            for choice in (
                ("fetch_buffer", Storage.LUTS, False),
                ("decode_register", True, False),
                ("in_flight_register", True, False),
                ("row_end_lookahead", True, False),
            )
        ),
        ("tile_registers", False, True),
        ("alu_lane_registers", False, True),
        ("products_per_multiplier", 2, False),
    ],
)
def test_a_choice_of_the_microarchitecture_can_be_overridden(
    derived: tuple[ProgramImage, int], name: str, value: Any, costs_cycles: bool
) -> None:
    image, cycles = derived
    choices = Microarchitecture.of(TINY)
    assert getattr(choices, name) != value
    ((report, contents),) = run([image], 0, replace(choices, **{name: value}))
    assert report.fault is None
    assert image.expected is not None
    assert np.array_equal(contents, image.expected)
    assert (report.cycles != cycles) == costs_cycles


def test_each_fault_is_reported_and_the_next_program_runs() -> None:
    """All faults on one core; each must leave it clean."""
    kinds = sorted(set(FAULT_KINDS) - {"bus_error", "token_overflow"})
    faulty = [random_faulty_program(TINY, kind, 4) for kind in kinds]
    sound = random_program(TINY, 11, length=8)
    reports = run([image for program, _ in faulty for image in (program, sound)], 0)
    for (_, fault), (report, _) in zip(faulty, reports[::2], strict=True):
        assert report.fault == (fault.module, fault.instruction, fault.cause)
    for second, contents in reports[1::2]:
        assert second.fault is None
        assert sound.expected is not None
        assert np.array_equal(contents, sound.expected)


def test_tokens_left_over_are_counted_and_cleared() -> None:
    image = image_of(
        Load(memory=Memory.INP, x_size=0, push_next=1),
        Load(memory=Memory.INP, x_size=0, push_next=1),
        Gemm(uop_end=0, push_next=1, push_prev=1),
        Store(x_size=0, push_prev=1),
        Finish(),
    )
    for report, _ in run([image, image], 0):
        assert report.fault is None
        assert report.tokens == {
            "load_to_compute": 2,
            "compute_to_load": 1,
            "compute_to_store": 1,
            "store_to_compute": 1,
        }


def test_a_blocked_module_takes_a_full_queue_and_no_more() -> None:
    """Fetch does not examine instructions behind a full queue, even illegal ones."""
    blocked = Load(memory=Memory.INP, x_size=0, pop_next=1)
    images = [
        image_of(*[blocked] * (QUEUE_DEPTH + extra), Load(memory=6), Finish()) for extra in (0, 1)
    ]
    expected = [("compute", QUEUE_DEPTH, "illegal_instruction"), ("load", 0, "deadlock")]
    assert [report.fault for report, _ in run(images, 0)] == expected
    for image, report in zip(images, expected, strict=True):
        device = FunctionalDevice(TINY, image.dram.size)
        device.write(0, image.dram)
        fault = device.run(image.insn_addr, image.insn_count).fault
        assert fault is not None
        assert (fault.module, fault.instruction, fault.cause) == report


def test_a_deadlock_is_reported_after_three_quiet_cycles() -> None:
    blocked = Load(memory=Memory.INP, x_size=0, pop_next=1)
    (report, _) = run([image_of(blocked, Finish())], 0)[0]
    assert report.fault == ("load", 0, "deadlock")
    # 21 cycles from launch until fetch waits and no module works. An earlier report would rely on
    # each module waking up at once.
    assert report.cycles == 24


@pytest.mark.parametrize("timeout", [1, 2, 40])
def test_a_timeout_counts_the_cycles_after_the_last_transfer(timeout: int) -> None:
    """Memory accepts the first request and never answers; two more cycles report the fault."""
    core = shared(Core, TINY, choices=None)

    async def drive(ctx: Any) -> None:
        ctx.set(core.timeout, timeout)
        ctx.set(core.insn_count, 1)
        ctx.set(core.launch, 1)
        await ctx.tick()
        ctx.set(core.launch, 0)
        ctx.set(core.read.request.ready, 1)
        await ctx.tick().until(core.read.request.valid)
        cycles, done = 0, False
        while not done:
            assert cycles < 100, "the watchdog does not end the run"
            _, _, done, cause = await ctx.tick().sample(core.done, core.fault.cause)
            cycles += 1
        assert cause == Cause.TIMEOUT
        assert cycles == timeout + 2

    simulate(core, drive)
