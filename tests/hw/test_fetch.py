from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.fetch import Fetch
from amaranth_vta.hw.isa import (
    Alu,
    Cause,
    Finish,
    Gemm,
    Instruction,
    Load,
    Memory,
    Module,
    Padding,
    Store,
    instruction_set,
    module_of,
    set_padding,
)
from amaranth_vta.sim.testbench.amaranth import BurstMemory, Pauses, never, pauses, shared, simulate

TINY = PRESETS["tiny"]
ISA = instruction_set(TINY)
MODULES = (Module.LOAD, Module.COMPUTE, Module.STORE)
# An address that is aligned to an instruction, but not to anything wider.
ADDRESS = 0x1FF0


@dataclass
class Outcome:
    handed: dict[Module, list[tuple[int, int]]]
    fault: tuple[int, int] | None
    cycles: int


def random_program(seed: int, count: int) -> list[int]:
    generator = random.Random(seed)
    kinds: list[Instruction] = [
        Load(memory=Memory.INP, x_size=3),
        Load(memory=Memory.WGT),
        Load(memory=Memory.UOP, pop_next=1),
        Load(memory=Memory.ACC),
        Store(push_prev=1),
        Gemm(uop_end=5),
        Alu(uop_end=2, alu_opcode=1),
    ]
    return [ISA.encode(generator.choice(kinds)) for _ in range(count - 1)] + [ISA.encode(Finish())]


def run_fetch(
    program: Sequence[int],
    *,
    config: Config = TINY,
    log_bus_width: int = 6,
    address: int = ADDRESS,
    count: int | None = None,
    pause: Pauses = never,
    blocked: Pauses = never,
    latency: int = 4,
    bad: Sequence[int] = (),
    within: int = 5000,
) -> Outcome:
    """Runs until fetch is quiet."""
    dut = shared(Fetch, replace(config, log_bus_width=log_bus_width))
    dram = np.zeros(1 << 16, dtype=np.uint8)
    code = b"".join(bits.to_bytes(16, "little") for bits in program)
    dram[address : address + len(code)] = list(code)
    memory = BurstMemory(dram, pause=pause, latency=latency, bad=bad)
    outcome = Outcome({module: [] for module in MODULES}, None, 0)

    async def run(ctx: Any) -> None:
        ctx.set(dut.insn_addr, address)
        ctx.set(dut.insn_count, len(program) if count is None else count)
        await ctx.tick()
        assert ctx.get(dut.quiet)
        ctx.set(dut.start, 1)
        await ctx.tick()
        ctx.set(dut.start, 0)
        streams = {module: getattr(dut, module.name.lower()) for module in MODULES}
        while not ctx.get(dut.quiet):
            outcome.cycles += 1
            assert outcome.cycles < within
            for stream in streams.values():
                ctx.set(stream.ready, not blocked())
            _, _, *samples = await ctx.tick().sample(
                *(s for x in streams.values() for s in (x.valid, x.ready, x.payload))
            )
            for number, module in enumerate(MODULES):
                valid, ready, payload = samples[3 * number : 3 * number + 3]
                if valid and ready:
                    outcome.handed[module].append((payload.index, payload.bits))
        if ctx.get(dut.fault.valid):
            outcome.fault = (ctx.get(dut.fault.index), ctx.get(dut.fault.cause))
        for _ in range(300):
            await ctx.tick()
            assert ctx.get(dut.quiet)
            assert not any(ctx.get(stream.valid) for stream in streams.values())

    async def serve(ctx: Any) -> None:
        await memory.serve_reads(ctx, dut.read)

    simulate(dut, run, background=[serve])
    return outcome


def expected(program: Sequence[int], count: int) -> dict[Module, list[tuple[int, int]]]:
    handed: dict[Module, list[tuple[int, int]]] = {module: [] for module in MODULES}
    for index, bits in enumerate(program[:count]):
        handed[module_of(ISA.decode(bits))].append((index, bits))
    return handed


@pytest.mark.parametrize("probability", [0, 0.5])
@pytest.mark.parametrize("log_bus_width", [6, 7, 8, 9])
def test_hands_each_instruction_to_its_module(log_bus_width: int, probability: float) -> None:
    for seed, count in enumerate((1, 2, 3, 15, 16, 17, 120)):
        program = random_program(seed, count)
        outcome = run_fetch(
            program,
            log_bus_width=log_bus_width,
            address=ADDRESS - 16 * seed,
            pause=pauses(probability, 1),
            blocked=pauses(probability, 2),
        )
        assert outcome.fault is None
        assert outcome.handed == expected(program, count)


def test_a_padding_value_goes_to_the_module_that_has_it() -> None:
    extended = replace(TINY, pad_value=1)
    encode = instruction_set(extended).encode
    program = [*(encode(set_padding(padding, 1)) for padding in Padding), encode(Finish())]
    handed = run_fetch(program, config=extended).handed
    assert handed[Module.LOAD] == [(0, program[0])]
    assert handed[Module.COMPUTE] == [(1, program[1]), (2, program[2])]
    # On a machine without PAD_VALUE both go to compute, which refuses them.
    assert run_fetch(program).handed[Module.COMPUTE] == list(enumerate(program))


@pytest.mark.parametrize(("log_bus_width", "cycles_each"), [(6, 2), (7, 1), (8, 1)])
def test_hands_over_as_fast_as_the_bus_brings(log_bus_width: int, cycles_each: int) -> None:
    program = random_program(1, 1000)
    outcome = run_fetch(program, log_bus_width=log_bus_width, address=0x1000)
    assert outcome.cycles < 1000 * cycles_each * 1.02 + 20


def test_a_full_queue_holds_up_what_follows() -> None:
    program = random_program(1, 100)
    dut = shared(Fetch, TINY)
    dram = np.zeros(1 << 16, dtype=np.uint8)
    dram[:1600] = list(b"".join(bits.to_bytes(16, "little") for bits in program))

    async def run(ctx: Any) -> None:
        ctx.set(dut.insn_count, 100)
        ctx.set(dut.start, 1)
        ctx.set(dut.load.ready, 1)
        ctx.set(dut.compute.ready, 1)
        await ctx.tick()
        ctx.set(dut.start, 0)
        await ctx.tick().repeat(400)
        assert ctx.get(dut.waiting)
        assert not ctx.get(dut.quiet)
        first = next(i for i, x in enumerate(program) if isinstance(ISA.decode(x), Store))
        assert ctx.get(dut.store.valid)
        assert ctx.get(dut.store.payload.index) == first

    async def serve(ctx: Any) -> None:
        await BurstMemory(dram).serve_reads(ctx, dut.read)

    simulate(dut, run, background=[serve])


@pytest.mark.parametrize("log_bus_width", [6, 8])
@pytest.mark.parametrize(
    ("change", "count", "index"),
    [
        ({50: ISA.encode(Finish())}, 100, 50),
        ({99: ISA.encode(Gemm(uop_end=1))}, 100, 99),
        ({}, 70, 69),
        ({}, 0, 0),
    ],
    ids=["finish in the middle", "no finish at the end", "cut short", "empty"],
)
def test_bad_streams_are_found_when_they_are_reached(
    change: dict[int, int], count: int, index: int, log_bus_width: int
) -> None:
    program = random_program(3, 100)
    for place, bits in change.items():
        program[place] = bits
    outcome = run_fetch(program, count=count, log_bus_width=log_bus_width)
    assert outcome.fault == (index, Cause.BAD_STREAM)
    assert outcome.handed == expected(program, index)


def test_a_program_lies_at_a_multiple_of_an_instruction() -> None:
    outcome = run_fetch(random_program(3, 5), address=ADDRESS + 8)
    assert outcome.fault == (0, Cause.BAD_STREAM)


@pytest.mark.parametrize("probability", [0, 0.5])
def test_a_bus_error_counts_when_its_instruction_is_reached(probability: float) -> None:
    program = random_program(3, 100)
    bad = [ADDRESS + 40 * 16 + 12]
    pause, blocked = pauses(probability, 1), pauses(probability, 2)
    outcome = run_fetch(program, bad=bad, pause=pause, blocked=blocked)
    assert outcome.fault == (40, Cause.BUS_ERROR)
    assert outcome.handed == expected(program, 40)
    # An error in prefetched words is not a fault if execution never reaches them.
    program[38] = ISA.encode(Finish())
    outcome = run_fetch(program, bad=bad, pause=pause, blocked=blocked)
    assert outcome.fault == (38, Cause.BAD_STREAM)
