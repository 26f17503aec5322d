"""Load as a module: tokens, order, faults. Tests of the loader check its transfers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.isa import (
    UNUSED_BY_SET_PADDING,
    Cause,
    Load,
    Memory,
    Padding,
    SetPadding,
    set_padding,
)
from amaranth_vta.hw.load import Load as LoadModule
from amaranth_vta.sim.testbench.amaranth import (
    BurstMemory,
    Pauses,
    checked_entry,
    never,
    pauses,
    put_all,
    shared,
    simulate,
)

TINY, EXTENDED = PRESETS["tiny"], PRESETS["tiny-extended"]
BASE = 0x2000


@dataclass
class Outcome:
    """Cycles of pops, pushes and retirements, and the last status."""

    took: list[int] = field(default_factory=list)
    gave: list[int] = field(default_factory=list)
    retired: list[int] = field(default_factory=list)
    last_write: list[int] = field(default_factory=list)
    fault: tuple[int, int] | None = None
    idle: bool = False
    quiet: bool = False
    waiting: int | None = None
    overflowing: bool = False


def run_load(
    loads: Sequence[Load | SetPadding],
    *,
    config: Config = TINY,
    tokens: Sequence[int] = (),
    full: Sequence[range] = (),
    pause: Pauses = never,
    bad: Sequence[int] = (),
    cycles: int = 600,
) -> Outcome:
    """Run LOADs. ``tokens`` are the cycles in which tokens arrive, ``full`` those in which no token
    can be pushed.
    """
    dut = shared(LoadModule, config)
    memory = BurstMemory(np.full(1 << 16, 1, dtype=np.uint8), pause=pause, bad=bad)
    outcome = Outcome()

    async def run(ctx: Any) -> None:
        ctx.set(dut.bases, {"inp": BASE, "wgt": BASE})
        count = 0
        for cycle in range(cycles):
            count += list(tokens).count(cycle)
            ctx.set(dut.from_compute.available, count > 0)
            ctx.set(dut.to_compute.full, any(cycle in period for period in full))
            _, _, take, give, retire, inp, wgt = await ctx.tick().sample(
                dut.from_compute.take,
                dut.to_compute.give,
                dut.status.retire,
                dut.inp.enable,
                dut.wgt.enable,
            )
            if take:
                assert count > 0
                count -= 1
                outcome.took.append(cycle)
            if give:
                outcome.gave.append(cycle)
            if retire:
                outcome.retired.append(cycle)
            if inp or wgt:
                outcome.last_write.append(cycle)
        status = dut.status
        outcome.idle, outcome.quiet = bool(ctx.get(status.idle)), bool(ctx.get(status.quiet))
        if ctx.get(status.waiting):
            outcome.waiting = ctx.get(status.index)
            outcome.overflowing = bool(ctx.get(status.overflowing))
        if ctx.get(dut.fault.valid):
            outcome.fault = (ctx.get(dut.fault.index), ctx.get(dut.fault.cause))

    async def serve(ctx: Any) -> None:
        await memory.serve_reads(ctx, dut.read)

    async def put(ctx: Any) -> None:
        # Indices are those in the whole stream: load sees every tenth instruction.
        entries = [checked_entry(config, x, 10 * n) for n, x in enumerate(loads)]
        await put_all(ctx, dut.insn, entries, pause)

    simulate(dut, run, background=[serve, put])
    return outcome


def inp(**fields: int) -> Load:
    return Load(memory=Memory.INP, **{"x_size": 4, **fields})


@pytest.mark.parametrize("probability", [0, 0.4])
def test_retires_in_order_and_gives_its_token_with_the_last_write(probability: float) -> None:
    loads = [inp(push_next=1), Load(memory=Memory.WGT, y_size=3), inp(x_size=0, push_next=1)]
    outcome = run_load(loads, pause=pauses(probability))
    assert len(outcome.retired) == 3
    assert outcome.gave == [outcome.retired[0], outcome.retired[2]]
    # A consumer of the token reads in a later cycle.
    assert outcome.retired[1] >= outcome.last_write[-1]
    assert outcome.idle
    assert outcome.quiet
    assert outcome.fault is None


def test_waits_for_its_token() -> None:
    loads = [inp(), inp(pop_next=1), inp()]
    outcome = run_load(loads)
    assert len(outcome.retired) == 1
    assert outcome.waiting == 10
    assert outcome.quiet
    assert not outcome.idle
    assert not outcome.overflowing
    outcome = run_load(loads, tokens=[300])
    assert outcome.took == [300]
    assert len(outcome.retired) == 3
    assert outcome.waiting is None


def test_instructions_overlap() -> None:
    outcome = run_load([inp(x_stride=4, y_size=2)] * 20, cycles=400)
    assert outcome.retired[-1] - outcome.retired[0] == 19 * 2 * 4 // 2


def test_waits_while_its_token_has_no_room() -> None:
    outcome = run_load([inp(push_next=1), inp(push_next=1), inp()], full=[range(600)])
    assert outcome.retired == []
    assert outcome.waiting == 0
    assert outcome.overflowing
    assert outcome.quiet
    outcome = run_load([inp(push_next=1)] * 3, full=[range(400)])
    assert outcome.gave == [400, 401, 402]


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (inp(reserved=1), Cause.ILLEGAL_INSTRUCTION),
        (inp(push_prev=1), Cause.ILLEGAL_INSTRUCTION),
        (inp(pop_prev=1), Cause.ILLEGAL_INSTRUCTION),
        (inp(sram_base=TINY.inp.depth - 3), Cause.INDEX_OUT_OF_RANGE),
        (inp(y_pad_1=15, x_pad_0=5), Cause.INDEX_OUT_OF_RANGE),
        (inp(y_size=65535, x_size=65535), Cause.INDEX_OUT_OF_RANGE),
        (inp(y_size=1 << 15, x_size=2), Cause.INDEX_OUT_OF_RANGE),
        (inp(sram_base=65535, x_size=1), Cause.INDEX_OUT_OF_RANGE),
    ],
)
@pytest.mark.parametrize("probability", [0, 0.4])
def test_stops_at_a_refused_instruction_after_all_before_it(
    wrong: Load, cause: Cause, probability: float
) -> None:
    outcome = run_load([inp(y_size=4)] * 3 + [wrong, inp()], pause=pauses(probability))
    assert outcome.fault == (30, cause)
    assert len(outcome.retired) == 3
    assert outcome.quiet
    assert not outcome.idle
    assert outcome.waiting is None


@pytest.mark.parametrize(
    "fine",
    [
        inp(sram_base=TINY.inp.depth - 4),
        inp(sram_base=65535, x_size=0, y_size=65535),
        inp(sram_base=65535, x_size=65535, y_size=0),
        inp(x_size=TINY.inp.depth),
        Load(memory=Memory.WGT, x_size=TINY.wgt.depth),
    ],
)
def test_what_touches_nothing_past_the_depth_is_in_range(fine: Load) -> None:
    outcome = run_load([fine, inp()])
    assert outcome.fault is None
    assert len(outcome.retired) == 2


def test_a_padding_value_takes_and_gives_tokens_in_its_order() -> None:
    value = set_padding(Padding.LOAD, -1)
    value = replace(value, pop_next=1, push_next=1)
    outcome = run_load([inp(y_size=4), value, inp(y_pad_0=1)], config=EXTENDED, tokens=[50])
    assert outcome.fault is None
    assert len(outcome.retired) == 3
    assert outcome.gave == [outcome.retired[1]]
    assert outcome.took == [50]


@pytest.mark.parametrize("name", [*UNUSED_BY_SET_PADDING, "reserved", "pop_prev", "push_prev"])
def test_a_padding_value_with_another_field_is_illegal(name: str) -> None:
    wrong = SetPadding(memory=Padding.LOAD, **{name: 1})
    outcome = run_load([inp(), wrong, inp()], config=EXTENDED, cycles=100)
    assert outcome.fault == (10, Cause.ILLEGAL_INSTRUCTION)


def test_illegal_is_found_before_the_tokens_and_range_after_them() -> None:
    outcome = run_load([inp(reserved=1, pop_next=1)])
    assert outcome.fault == (0, Cause.ILLEGAL_INSTRUCTION)
    assert outcome.took == []
    outcome = run_load([inp(sram_base=65535, pop_next=1)])
    assert outcome.fault is None
    assert outcome.waiting == 0
    outcome = run_load([inp(sram_base=65535, pop_next=1)], tokens=[50])
    assert outcome.fault == (0, Cause.INDEX_OUT_OF_RANGE)
    assert outcome.took == [50]


@pytest.mark.parametrize("probability", [0, 0.4])
def test_stops_at_a_bus_error(probability: float) -> None:
    loads = [inp(dram_base=100 * n, y_size=3, x_stride=9) for n in range(6)]
    bad = [BASE + 210 * TINY.inp.element_bytes]
    outcome = run_load(loads, bad=bad, pause=pauses(probability))
    assert outcome.fault == (20, Cause.BUS_ERROR)
    assert len(outcome.retired) == 2
    assert outcome.quiet
