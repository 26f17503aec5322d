"""Lanes that columns share, against a lane per column: the same results, some cycles later."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.datapath.requantize import RequantizingLane
from amaranth_vta.hw.datapath.shared_lanes import SharedLanes
from amaranth_vta.hw.isa import AluOp
from amaranth_vta.sim.testbench.amaranth import shared, simulate

OPERATIONS = (AluOp.REQUANTIZE, AluOp.MIN, AluOp.ADD, AluOp.SHR, AluOp.MUL, AluOp.MULTIPLY_ADD)
BATCH2 = replace(
    PRESETS["batch2"], requantize=1, lookup=1, multiply_add=1, round_twice=1, log_acc_buff_size=13
)
Step = tuple[int, AluOp, int, list[int], list[int]]


def steps(scalars: int, rng: np.random.Generator) -> list[Step]:
    """Sets of parameters and operations: enable, operation, parameter, operands."""
    found = []
    for _ in range(12):
        chosen = AluOp(int(rng.choice(OPERATIONS)))
        numbers = {AluOp.REQUANTIZE: range(4), AluOp.MULTIPLY_ADD: range(1)}.get(chosen, ())
        for number in numbers:
            parameter = 1 << number if chosen is AluOp.REQUANTIZE else 0b0110
            found.append((0, chosen, parameter, *words(scalars, rng)))
        found += [(1, chosen, 0, *words(scalars, rng)) for _ in range(int(rng.integers(1, 6)))]
    return found


def words(scalars: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    bits = rng.integers(4, 32, (2, scalars))
    first, second = (rng.integers(-(1 << 31), 1 << 31, (2, scalars)) >> bits).tolist()
    return first, second


def alone(all_steps: list[Step], column: int) -> list[int]:
    """Results of the operations in one column, by a lane that is not shared."""
    dut = shared(RequantizingLane, multiplies_and_adds=True, rounds_twice=True)
    results: list[int] = []

    async def check(ctx: Any) -> None:
        for enable, operation, parameter, a, b in all_steps:
            ctx.set(dut.enable, enable)
            ctx.set(dut.operation, operation)
            ctx.set(dut.parameter, parameter)
            ctx.set(dut.a, a[column])
            ctx.set(dut.b, b[column])
            if not enable:
                await ctx.tick()
                continue
            # Nothing else is in flight.
            await ctx.tick()
            ctx.set(dut.enable, 0)
            await ctx.tick().repeat(dut.latency - 1)
            results.append(ctx.get(dut.result))

    simulate(dut, check)
    return results


@pytest.mark.parametrize("gaps", [0, 0.5])
@pytest.mark.parametrize("log_columns", [1, 2])
@pytest.mark.parametrize("base", [PRESETS["tiny-extended"], BATCH2], ids=["tiny", "batch2"])
def test_columns_that_share_a_lane_do_what_columns_with_own_lanes_do(
    base: Any, log_columns: int, gaps: float
) -> None:
    config = replace(base, log_lane_columns=log_columns)
    scalars, columns = config.batch * config.block_out, config.lane_columns
    rng = np.random.default_rng(5)
    all_steps = steps(scalars, rng)
    dut = shared(SharedLanes, config)
    latency = RequantizingLane.latency + columns - 1
    due: dict[int, int] = {}
    got: dict[int, list[int]] = {}
    cycle = 0

    async def tick(ctx: Any) -> None:
        nonlocal cycle
        await ctx.tick()
        cycle += 1
        if cycle in due:
            got[due[cycle]] = [ctx.get(result) for result in dut.result]

    async def check(ctx: Any) -> None:
        for enable, operation, parameter, a, b in all_steps:
            ctx.set(dut.enable, enable)
            ctx.set(dut.operation, operation)
            ctx.set(dut.parameter, parameter)
            ctx.set(dut.a, a)
            ctx.set(dut.b, b)
            if enable:
                due[cycle + latency] = len(due)
            await tick(ctx)
            # Inputs change while the other columns are computed.
            ctx.set(dut.enable, 0)
            ctx.set(dut.parameter, 0)
            ctx.set(dut.operation, AluOp.MUL)
            ctx.set(dut.a, b)
            ctx.set(dut.b, a)
            for _ in range(columns - 1 + (rng.random() < gaps)):
                await tick(ctx)
        for _ in range(latency):
            await tick(ctx)

    simulate(dut, check)
    for column in (0, 1, scalars - 2, scalars - 1):
        assert [got[n][column] for n in sorted(got)] == alone(all_steps, column), column
