"""The memory of a board: bursts of the machine, words of the host, and the limit."""

from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.sim import Simulator

from amaranth_vta.hw.boards.memory import OnChipMemory
from amaranth_vta.hw.bus.axi import AXI4Signature

SIZE, LIMIT = 8192, 4096 + 64
OKAY, DECERR = 0, 3


class Bench:
    def __init__(self, width: int = 64) -> None:
        self.bytes = width // 8
        self.dut = OnChipMemory(SIZE, AXI4Signature(width))

    def run(self, *tests: Any) -> None:
        simulator = Simulator(self.dut)
        simulator.add_clock(1e-6)
        for test in tests:
            simulator.add_testbench(test)
        simulator.run()

    async def write(self, ctx: Any, address: int, words: list[int], strobe: int = -1) -> int:
        axi = self.dut.axi
        ctx.set(axi.awaddr, address)
        ctx.set(axi.awlen, len(words) - 1)
        ctx.set(axi.awvalid, 1)
        await ctx.tick().until(axi.awready)
        ctx.set(axi.awvalid, 0)
        for number, word in enumerate(words):
            ctx.set(axi.wdata, word)
            ctx.set(axi.wstrb, strobe)
            ctx.set(axi.wlast, number == len(words) - 1)
            ctx.set(axi.wvalid, 1)
            await ctx.tick().until(axi.wready)
            ctx.set(axi.wvalid, 0)
        ctx.set(axi.bready, 1)
        (response,) = await ctx.tick().sample(axi.bresp).until(axi.bvalid)
        ctx.set(axi.bready, 0)
        return int(response)

    async def read(
        self, ctx: Any, address: int, beats: int, pause: float = 0
    ) -> list[tuple[int, int, int]]:
        """Data, response and last of each beat."""
        axi, chance = self.dut.axi, random.Random(1)
        found: list[tuple[int, int, int]] = []
        ctx.set(axi.araddr, address)
        ctx.set(axi.arlen, beats - 1)
        ctx.set(axi.arvalid, 1)
        await ctx.tick().until(axi.arready)
        ctx.set(axi.arvalid, 0)
        while len(found) < beats:
            ctx.set(axi.rready, chance.random() >= pause)
            _, _, valid, ready, word, response, last = await ctx.tick().sample(
                axi.rvalid, axi.rready, axi.rdata, axi.rresp, axi.rlast
            )
            if valid and ready:
                found.append((word, response, last))
        ctx.set(axi.rready, 0)
        return found

    async def host(self, ctx: Any, address: int, data: int | None = None) -> tuple[int, int]:
        """Data and error of one access of the host."""
        port = self.dut.host
        ctx.set(port.request.payload.address, address)
        ctx.set(port.request.payload.write, data is not None)
        ctx.set(port.request.payload.data, data or 0)
        ctx.set(port.request.valid, 1)
        await ctx.tick().until(port.request.ready)
        ctx.set(port.request.valid, 0)
        found, error = await ctx.tick().sample(port.data, port.error).until(port.done)
        return int(found), int(error)


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("pause", [0, 0.5])
def test_bursts_and_the_host_see_the_same_memory(width: int, pause: float) -> None:
    bench = Bench(width)
    words = [random.Random(2).getrandbits(width) for _ in range(16)]

    async def test(ctx: Any) -> None:
        ctx.set(bench.dut.limit, SIZE)
        assert await bench.write(ctx, 256, words) == OKAY
        expected = [(word, OKAY, int(at == 15)) for at, word in enumerate(words)]
        assert await bench.read(ctx, 256, 16, pause) == expected
        for at in range(bench.bytes // 4):
            part = words[1] >> 32 * at & 0xFFFFFFFF
            assert await bench.host(ctx, 256 + bench.bytes + 4 * at) == (part, 0)
        await bench.host(ctx, 260, 0xDEADBEEF)
        changed = words[0] & ~(0xFFFFFFFF << 32) | 0xDEADBEEF << 32
        assert (await bench.read(ctx, 256, 1))[0][0] == changed

    bench.run(test)


def test_only_bytes_with_a_strobe_are_written() -> None:
    bench = Bench()

    async def test(ctx: Any) -> None:
        ctx.set(bench.dut.limit, SIZE)
        await bench.write(ctx, 0, [0x1122334455667788])
        await bench.write(ctx, 0, [0xFFFFFFFFFFFFFFFF], strobe=0b0100_0001)
        assert (await bench.read(ctx, 0, 1))[0][0] == 0x11FF3344556677FF

    bench.run(test)


def test_beats_beyond_the_limit_are_errors_and_write_nothing() -> None:
    bench = Bench()

    async def test(ctx: Any) -> None:
        ctx.set(bench.dut.limit, LIMIT)
        assert await bench.write(ctx, LIMIT - 8, [1, 2]) == DECERR
        responses = [response for _, response, _ in await bench.read(ctx, LIMIT - 8, 2)]
        assert responses == [OKAY, DECERR]
        assert await bench.host(ctx, LIMIT - 8) == (1, 0)
        assert await bench.host(ctx, LIMIT) == (0, 0)
        for far in (SIZE, 1 << 20, 1 << 40):
            assert (await bench.read(ctx, far, 1))[0][1] == DECERR
        assert (await bench.host(ctx, SIZE))[1] == 1

    bench.run(test)


def test_bursts_go_on_while_the_host_reads_and_writes() -> None:
    bench = Bench()
    words = list(range(1, 129))

    async def machine(ctx: Any) -> None:
        ctx.set(bench.dut.limit, SIZE)
        assert await bench.write(ctx, 0, words) == OKAY
        assert [word for word, _, _ in await bench.read(ctx, 0, 128)] == words

    async def host(ctx: Any) -> None:
        for number in range(60):
            address = 4096 + 4 * number
            await bench.host(ctx, address, number)
            assert await bench.host(ctx, address) == (number, 0)

    bench.run(machine, host)
