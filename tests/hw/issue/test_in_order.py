"""Issue and retirement with several units, as in load, store and compute."""

from __future__ import annotations

from typing import Any

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import Cause, Gemm, Module
from amaranth_vta.hw.issue.in_order import InOrder
from amaranth_vta.sim.testbench.amaranth import (
    Pauses,
    checked_entry,
    pauses,
    put_all,
    shared,
    simulate,
)

TINY = PRESETS["tiny"]
# The cause that each unit reports.
CAUSES = [Cause.BUS_ERROR, Cause.INDEX_OUT_OF_RANGE]


def run(
    units: list[int], durations: list[int], *, failing: int | None = None, pause: Pauses
) -> tuple[list[int], list[int], tuple[int, int] | None]:
    """Run instructions on the given ``units``, each for its ``durations`` cycles; a unit works in
    order.

    Returns the indices in completion order, the retired indices, and the fault.
    """
    dut = shared(InOrder, TINY, Module.COMPUTE, tuple(CAUSES))
    entries = [checked_entry(TINY, Gemm(uop_end=n % 4), n) for n in range(len(units))]
    done: list[int] = []
    retired: list[int] = []
    fault: list[tuple[int, int]] = []

    async def drive(ctx: Any) -> None:
        ctx.set(dut.may_start, 1)
        ctx.set(dut.unit_ready, 1)
        ctx.set(dut.drained, 1)
        working: dict[int, list[tuple[int, int]]] = {1: [], 2: []}
        failed: set[int] = set()
        for cycle in range(400):
            head = ctx.get(dut.head.entry.index)
            ctx.set(dut.unit, units[head] if head < len(units) else 0)
            finished, errors = 0, 0
            for unit, queue in working.items():
                if queue and queue[0][0] <= cycle and unit not in failed:
                    index = queue.pop(0)[1]
                    done.append(index)
                    finished |= 1 << unit - 1
                    if index == failing:
                        errors |= 1 << unit - 1
                        failed.add(unit)
            ctx.set(dut.done, finished)
            ctx.set(dut.error, errors)
            _, _, start, index, retire = await ctx.tick().sample(
                dut.start, dut.head.entry.index, dut.status.retire
            )
            if start:
                queue = working[units[index]]
                after = max(cycle, queue[-1][0] if queue else 0)
                queue.append((after + durations[index], index))
            if retire:
                retired.append(len(retired))
        if ctx.get(dut.fault.valid):
            fault.append((ctx.get(dut.fault.index), ctx.get(dut.fault.cause)))
        if not fault:
            assert ctx.get(dut.status.idle)

    async def put(ctx: Any) -> None:
        await put_all(ctx, dut.insn, entries, pause)

    simulate(dut, drive, background=[put])
    return done, retired, fault[0] if fault else None


@pytest.mark.parametrize("probability", [0, 0.5])
def test_instructions_retire_in_order_whatever_is_done_first(probability: float) -> None:
    units = [1, 2, 2, 1, 2, 1, 1, 2]
    durations = [40, 2, 3, 5, 1, 30, 1, 1]
    done, retired, fault = run(units, durations, pause=pauses(probability, 2))
    assert fault is None
    assert done != sorted(done)
    assert retired == list(range(len(units)))


@pytest.mark.parametrize("failing", [0, 1, 4])
def test_a_failure_waits_until_everything_before_it_has_retired(failing: int) -> None:
    units = [1, 2, 2, 1, 2, 1]
    _, retired, fault = run(units, [60, 2, 2, 50, 2, 2], failing=failing, pause=pauses(0))
    assert len(retired) == failing
    assert fault == (failing, CAUSES[units[failing] - 1])


def test_a_module_waits_only_where_it_has_an_instruction_that_lacks_something() -> None:
    dut = shared(InOrder, TINY, Module.COMPUTE, tuple(CAUSES))
    status: list[tuple[int, int]] = []

    async def drive(ctx: Any) -> None:
        ctx.set(dut.unit, 1)
        ctx.set(dut.unit_ready, 1)
        ctx.set(dut.drained, 1)
        put_in, is_issued, is_done = 5, 10, 15
        for cycle in range(20):
            ctx.set(dut.insn.valid, put_in <= cycle <= is_issued)
            ctx.set(dut.may_start, cycle == is_issued)
            ctx.set(dut.done, cycle == is_done)
            status.append((ctx.get(dut.status.idle), ctx.get(dut.status.waiting)))
            await ctx.tick()

    simulate(dut, drive)
    idle, waiting, works = (1, 0), (0, 1), (0, 0)
    # The entry of the idle module has no effect, whatever its fields contain.
    assert status == [idle] * 5 + [waiting] * 5 + [works] * 6 + [idle] * 4
