"""Bursts of back-to-back commands against Python, their throughput, and the stop."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from amaranth.hdl import Value

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.dma.bursts import BurstWalker
from amaranth_vta.hw.dma.rows import Kind, Rows
from amaranth_vta.hw.isa import Memory
from amaranth_vta.sim.testbench.amaranth import pauses, put_all, shared, simulate

# The limit is 256 beats on a bus of 64 bits, and 4096 bytes on one of 512 bits.
ROWS = {
    bits: Rows(config, [Kind.of(config, Memory.INP)])
    for bits, config in (
        (64, PRESETS["pynq"]),
        (512, replace(PRESETS["pynq"], log_bus_width=9)),
    )
}


def random_command(generator: random.Random) -> dict[str, int]:
    return {
        "address": generator.randrange(1 << 20),
        "stride": generator.choice([16, 4096, generator.randrange(1 << 13)]),
        "last_byte": generator.choice([0, 15, generator.randrange(10_000)]),
        "rows": generator.choice([1, 1, 2, 3]),
    }


def bursts_of(command: dict[str, int], bus_bytes: int) -> Iterator[tuple[int, int, bool]]:
    """Address, length and ``last`` of each burst of a command."""
    chunk = min(256 * bus_bytes, 4096)
    for row in range(command["rows"]):
        address = command["address"] + row * command["stride"]
        end = address + command["last_byte"]
        address -= address % bus_bytes
        while address <= end:
            last = min(end, address - address % chunk + chunk - 1)
            ends = last == end and row == command["rows"] - 1
            yield address, last // bus_bytes - address // bus_bytes, ends
            address = last + 1


@pytest.mark.parametrize("bits", ROWS)
@pytest.mark.parametrize(("gaps", "stalls"), [(0, 0), (0.7, 0), (0, 0.5)])
def test_bursts_cover_the_rows_of_each_command_once(bits: int, gaps: float, stalls: float) -> None:
    """The walker is idle exactly when it holds no command."""
    generator = random.Random(1)
    commands = [random_command(generator) for _ in range(50)]
    want = [burst for command in commands for burst in bursts_of(command, bits // 8)]
    dut = shared(BurstWalker, ROWS[bits])
    got: list[tuple[int, int, bool]] = []

    async def put(ctx: Any) -> None:
        await put_all(ctx, dut.command, commands, pauses(gaps, 1))

    async def get(ctx: Any) -> None:
        command, request = dut.command, dut.request
        stall, held = pauses(stalls, 2), 0
        for _ in range(1000):
            ctx.set(request.ready, not stall())
            _, _, *moves, burst, last, idle = await ctx.tick().sample(
                command.valid & command.ready,
                request.valid & request.ready,
                request.payload,
                dut.last,
                dut.idle,
            )
            assert idle == (held == 0)
            accepted, taken = moves
            if taken:
                got.append((burst.address, burst.length, bool(last)))
            held += accepted - (taken and last)
        assert held == 0

    simulate(dut, get, background=[put])
    assert got == want


def test_a_burst_comes_in_each_cycle_also_across_rows_and_commands() -> None:
    """The last row of each command has three bursts."""
    rows = {"address": 0, "stride": 8192, "last_byte": 3 * 2048 - 1, "rows": 2}
    dut = shared(BurstWalker, ROWS[64])
    offered: list[int] = []

    async def put(ctx: Any) -> None:
        await put_all(ctx, dut.command, [rows] * 3)

    async def check(ctx: Any) -> None:
        ctx.set(dut.request.ready, 1)
        for _ in range(22):
            offered.append(ctx.get(dut.request.valid))
            await ctx.tick()

    simulate(dut, check, background=[put])
    assert offered == [0, 0] + [1] * 18 + [0, 0]


@pytest.mark.parametrize("cycle", range(1, 13))
def test_a_stop_leaves_only_the_burst_that_is_offered(cycle: int) -> None:
    """Rows have three bursts each; a second command is held meanwhile."""
    rows = {"address": 0, "stride": 8192, "last_byte": 3 * 2048 - 1, "rows": 2}
    dut = shared(BurstWalker, ROWS[64])

    async def put(ctx: Any) -> None:
        await put_all(ctx, dut.command, [rows] * 3)

    async def check(ctx: Any) -> None:
        ctx.set(dut.request.ready, 1)
        await ctx.tick().repeat(cycle)
        ctx.set(dut.request.ready, 0)
        ctx.set(dut.stop, 1)
        offered = ctx.get(dut.request.valid)
        burst = ctx.get(Value.cast(dut.request.payload))
        for _ in range(3):
            assert not ctx.get(dut.command.ready)
            await ctx.tick()
            assert ctx.get(dut.request.valid) == offered
            assert ctx.get(dut.idle) == (not offered)
            if offered:
                assert ctx.get(Value.cast(dut.request.payload)) == burst
        ctx.set(dut.request.ready, 1)
        for _ in range(3):
            await ctx.tick()
            assert not ctx.get(dut.request.valid)
            assert ctx.get(dut.idle)

    simulate(dut, check, background=[put])
