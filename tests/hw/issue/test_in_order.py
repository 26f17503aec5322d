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
    order. Checks the activity in each cycle.

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
        # Per unit, instructions that have not completed, and that have not retired.
        incomplete, unretired = {1: 0, 2: 0}, {1: 0, 2: 0}
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
            activity = dut.activity
            assert ctx.get(activity.index) == head
            assert ctx.get(activity.ends) == (finished & ~errors) << 1
            assert ctx.get(activity.busy) == bits(incomplete)
            assert ctx.get(dut.pending) == bits(unretired)
            for unit in working:
                incomplete[unit] -= (finished & ~errors) >> unit - 1 & 1
            _, _, start, index, retire = await ctx.tick().sample(
                dut.start, dut.head.entry.index, dut.status.retire
            )
            if start:
                queue = working[units[index]]
                after = max(cycle, queue[-1][0] if queue else 0)
                queue.append((after + durations[index], index))
                incomplete[units[index]] += 1
                unretired[units[index]] += 1
            if retire:
                unretired[units[len(retired)]] -= 1
                retired.append(len(retired))
        if ctx.get(dut.fault.valid):
            fault.append((ctx.get(dut.fault.index), ctx.get(dut.fault.cause)))
        if not fault:
            assert ctx.get(dut.status.idle)

    async def put(ctx: Any) -> None:
        await put_all(ctx, dut.insn, entries, pause)

    simulate(dut, drive, background=[put])
    return done, retired, fault[0] if fault else None


def bits(counts: dict[int, int]) -> int:
    """Per unit, whether its count is not 0."""
    return sum(1 << unit for unit, count in counts.items() if count)


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


def test_a_module_waits_for_room_only_while_no_instruction_issues_or_executes() -> None:
    dut = shared(InOrder, TINY, Module.COMPUTE, tuple(CAUSES))
    status: list[tuple[int, int, int]] = []

    async def drive(ctx: Any) -> None:
        for name in ("unit", "unit_ready", "may_start", "drained"):
            ctx.set(getattr(dut, name), 1)
        for cycle in range(16):
            ctx.set(dut.to_store.full, cycle < 12)
            ctx.set(dut.insn.valid, cycle in (0, 5))
            ctx.set(dut.insn.payload, checked_entry(TINY, Gemm(uop_end=1, push_next=1)))
            ctx.set(dut.done, cycle in (2, 8))
            one = dut.status
            status.append(tuple(map(ctx.get, (one.waiting, one.overflowing, one.executing))))
            await ctx.tick()

    simulate(dut, drive)
    idle, waiting, executes = (0, 0, 0), (1, 1, 0), (0, 0, 1)
    # The second instruction issues in cycle 5. From cycle 12 on both retire.
    want = [idle] + [executes] * 2 + [waiting] * 2 + [executes] * 4 + [waiting] * 3
    assert status == want + [executes] * 2 + [idle] * 2
