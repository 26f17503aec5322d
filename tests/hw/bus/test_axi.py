from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.bus.axi import AXI4LiteSignature, AXI4Signature, ReadArbiter
from amaranth_vta.sim.testbench.amaranth import (
    BurstMemory,
    Pauses,
    never,
    pauses,
    put_all,
    shared,
    simulate,
)

NAMES = ("fetch", "load", "compute")
# Every word holds its own number; each reader has a quarter of them.
DRAM = np.arange(1 << 13, dtype=np.uint64).view(np.uint8)


class Reader:
    """Asks for bursts and takes their beats."""

    def __init__(self, port: Any, lengths: list[int], start: int, pause: Pauses) -> None:
        self.port, self.pause = port, pause
        self.requests = []
        self.expected: list[tuple[int, int]] = []
        word = start
        for length in lengths:
            word = word if word % 512 + length <= 512 else word - word % 512 + 512
            self.requests.append({"address": 8 * word, "length": length - 1})
            self.expected += [(word + n, n == length - 1) for n in range(length)]
            word += length
        self.came: list[tuple[int, int]] = []
        self.finished = 0

    async def ask(self, ctx: Any) -> None:
        await put_all(ctx, self.port.request, self.requests, self.pause)

    async def take(self, ctx: Any) -> None:
        cycle = 0
        while len(self.came) < len(self.expected):
            assert cycle < 20_000
            ctx.set(self.port.beat.ready, not self.pause())
            _, _, valid, ready, beat = await ctx.tick().sample(
                self.port.beat.valid, self.port.beat.ready, self.port.beat.payload
            )
            if valid and ready:
                self.came.append((beat.data, beat.last))
            cycle += 1
        self.finished = cycle


def run_arbiter(
    lengths: dict[str, list[int]], *, pause: Pauses = never, latency: int = 4
) -> tuple[dict[str, Reader], BurstMemory]:
    dut = shared(ReadArbiter, 64)
    memory = BurstMemory(DRAM, latency=latency, pause=pause)
    readers = {
        name: Reader(getattr(dut, name), lengths[name], 2048 * n, pause)
        for n, name in enumerate(NAMES)
    }

    async def serve(ctx: Any) -> None:
        await memory.serve_reads(ctx, dut.bus)

    async def check_idle(ctx: Any) -> None:
        await ctx.tick().until(~dut.idle)
        for _ in range(20_000):
            await ctx.tick()
            if all(reader.came == reader.expected for reader in readers.values()):
                break
        await ctx.tick()
        assert ctx.get(dut.idle)

    simulate(
        dut,
        check_idle,
        *(reader.take for reader in readers.values()),
        background=[serve, *(reader.ask for reader in readers.values())],
    )
    return readers, memory


@pytest.mark.parametrize("probability", [0, 0.4])
def test_each_reader_gets_its_own_beats_in_order(probability: float) -> None:
    lengths = {"fetch": [32] * 10, "load": [1, 256, 3, 100] * 3, "compute": [2] * 40}
    readers, _ = run_arbiter(lengths, pause=pauses(probability))
    for reader in readers.values():
        assert reader.came == reader.expected


def test_load_and_compute_take_turns_and_the_bus_is_never_idle() -> None:
    readers, memory = run_arbiter({"fetch": [], "load": [16] * 40, "compute": [16] * 40})
    assert memory.beats / readers["compute"].finished > 0.98
    owners = [address // (2048 * 8) for address, _ in memory.bursts]
    assert owners == [1, 2] * 40


def test_fetch_waits_for_one_burst_and_the_beats_ahead_and_the_others_take_turns_with_it() -> None:
    lengths = {"fetch": [32] * 5, "load": [256] * 6, "compute": [256] * 6}
    readers, memory = run_arbiter(lengths, latency=48)
    owners = [address // (2048 * 8) for address, _ in memory.bursts]
    assert owners[:9:2] == [0] * 5
    assert owners[1:9:2] == [1, 2, 1, 2]
    assert readers["fetch"].finished < 5 * (256 + 32) + 100


def test_bus_signatures_have_the_wires_of_the_standard() -> None:
    axi, lite = AXI4Signature(64), AXI4LiteSignature()
    assert len(axi.members) == 11 + 5 + 4 + 11 + 6
    assert (axi.data_width, axi.address_width, axi.id_width) == (64, 48, 1)
    assert (lite.data_width, lite.address_width) == (32, 12)
    assert set(lite.members) == {
        *("awaddr", "awprot", "awvalid", "awready", "wdata", "wstrb", "wvalid", "wready"),
        *("bresp", "bvalid", "bready"),
        *("araddr", "arprot", "arvalid", "arready", "rdata", "rresp", "rvalid", "rready"),
    }
