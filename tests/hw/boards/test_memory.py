"""Memory of a board: bursts from the machine, word accesses from the host, and the address limit.

Tested on-chip, and as SDRAM with a model chip that detects timing violations.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.board_memory import MEMORIES, MemoryBench
from tests.support.word_access import access

LIMIT = 4096 + 64
OKAY, DECERR = 0, 3

pytestmark = pytest.mark.parametrize("memory", MEMORIES)


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("pause", [0, 0.5])
def test_bursts_and_the_host_see_the_same_memory(memory: str, width: int, pause: float) -> None:
    bench = MemoryBench(memory, width)
    words = [random.Random(2).getrandbits(width) for _ in range(16)]

    async def test(ctx: Any) -> None:
        ctx.set(bench.dut.limit, bench.size)
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


def test_only_bytes_with_a_strobe_are_written(memory: str) -> None:
    bench = MemoryBench(memory)

    async def test(ctx: Any) -> None:
        ctx.set(bench.dut.limit, bench.size)
        await bench.write(ctx, 0, [0x1122334455667788])
        await bench.write(ctx, 0, [0xFFFFFFFFFFFFFFFF], strobe=0b0100_0001)
        assert (await bench.read(ctx, 0, 1))[0][0] == 0x11FF3344556677FF

    bench.run(test)


def test_a_store_of_single_bytes_changes_only_these(memory: str) -> None:
    bench = MemoryBench(memory)

    async def test(ctx: Any) -> None:
        ctx.set(bench.dut.limit, bench.size)
        await bench.write(ctx, 0, [0x1122334455667788])
        await access(ctx, bench.dut.host, 4, 0xAABBCCDD, strobe=0b0101)
        assert (await bench.read(ctx, 0, 1))[0][0] == 0x11BB33DD55667788

    bench.run(test)


def test_beats_beyond_the_limit_are_errors_and_write_nothing(memory: str) -> None:
    bench = MemoryBench(memory)

    async def test(ctx: Any) -> None:
        ctx.set(bench.dut.limit, LIMIT)
        assert await bench.write(ctx, LIMIT - 8, [1, 2]) == DECERR
        responses = [response for _, response, _ in await bench.read(ctx, LIMIT - 8, 2)]
        assert responses == [OKAY, DECERR]
        assert await bench.host(ctx, LIMIT - 8) == (1, 0)
        assert await bench.host(ctx, LIMIT) == (0, 0)
        for far in (bench.size, 1 << 30, 1 << 40):
            assert (await bench.read(ctx, far, 1))[0][1] == DECERR
        assert (await bench.host(ctx, bench.size))[1] == 1

    bench.run(test)


def test_bursts_go_on_while_the_host_reads_and_writes(memory: str) -> None:
    bench = MemoryBench(memory)
    words = list(range(1, 129))

    async def machine(ctx: Any) -> None:
        ctx.set(bench.dut.limit, bench.size)
        assert await bench.write(ctx, 0, words) == OKAY
        assert [word for word, _, _ in await bench.read(ctx, 0, 128)] == words

    async def host(ctx: Any) -> None:
        for number in range(60):
            address = 4096 + 4 * number
            await bench.host(ctx, address, number)
            assert await bench.host(ctx, address) == (number, 0)

    bench.run(machine, host)
