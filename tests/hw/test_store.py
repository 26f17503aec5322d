"""Store as a module: what the tests of the storer, and of load, which shares its issue, do not
check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import Cause, Store
from amaranth_vta.hw.store import Store as StoreModule
from amaranth_vta.sim.testbench.amaranth import (
    BurstMemory,
    Pauses,
    checked_entry,
    never,
    pauses,
    put_all,
    simulate,
)

TINY = PRESETS["tiny"]
SIZE = TINY.out.element_bytes
BASE = 0x1000


class Run:
    """Stores from a scratchpad whose element n holds n + 1 in every byte."""

    def __init__(
        self, stores: Sequence[Store], *, pause: Pauses = never, bad: Sequence[int] = ()
    ) -> None:
        dut = StoreModule(TINY)
        self.dram = np.zeros(1 << 14, dtype=np.uint8)
        self.given: list[np.ndarray] = []
        self.taken = self.retired = 0
        self.fault: tuple[int, int] | None = None
        memory = BurstMemory(self.dram, pause=pause, bad=bad, latency=10)

        async def run(ctx: Any) -> None:
            ctx.set(dut.base, BASE)
            ctx.set(dut.from_compute.available, 1)
            for _ in range(600):
                _, _, take, give, retire = await ctx.tick().sample(
                    dut.from_compute.take, dut.to_compute.give, dut.status.retire
                )
                self.taken += take
                self.retired += retire
                if give:
                    self.given.append(self.dram.copy())
            assert ctx.get(dut.status.quiet)
            self.idle = ctx.get(dut.status.idle)
            if ctx.get(dut.fault.valid):
                self.fault = (ctx.get(dut.fault.index), ctx.get(dut.fault.cause))

        async def scratchpad(ctx: Any) -> None:
            port = dut.scratchpad
            while True:
                _, _, enable, index = await ctx.tick().sample(port.enable, port.index)
                if enable:
                    ctx.set(
                        port.data,
                        [
                            int.from_bytes([(index + k + 1) % 256] * SIZE, "little")
                            for k in range(len(port.data))
                        ],
                    )

        async def serve(ctx: Any) -> None:
            await memory.serve_writes(ctx, dut.write)

        async def put(ctx: Any) -> None:
            entries = [checked_entry(TINY, x, 10 * n) for n, x in enumerate(stores)]
            await put_all(ctx, dut.insn, entries, pause)

        simulate(dut, run, background=[scratchpad, serve, put])


def stored(*places: tuple[int, int]) -> np.ndarray:
    dram = np.zeros(1 << 14, dtype=np.uint8)
    for at, element in places:
        dram[BASE + at * SIZE : BASE + (at + 1) * SIZE] = element + 1
    return dram


@pytest.mark.parametrize("probability", [0, 0.4])
def test_gives_its_token_when_the_memory_has_confirmed(probability: float) -> None:
    stores = [
        Store(sram_base=3, dram_base=5, x_size=3, y_size=2, x_stride=7, push_prev=1, pop_prev=1),
        Store(x_size=0, push_prev=1),
        Store(sram_base=9, dram_base=1, push_prev=1, pop_prev=1),
    ]
    run = Run(stores, pause=pauses(probability))
    first = [(5, 3), (6, 4), (7, 5), (12, 6), (13, 7), (14, 8)]
    assert (run.taken, run.retired, len(run.given)) == (2, 3, 3)
    for dram in run.given[:2]:
        touched = dram[BASE + 5 * SIZE :]
        assert np.array_equal(touched, stored(*first)[BASE + 5 * SIZE :])
    assert np.array_equal(run.dram, stored(*first, (1, 9)))
    assert run.idle
    assert run.fault is None


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (Store(reserved=2), Cause.ILLEGAL_INSTRUCTION),
        (Store(memory=3), Cause.ILLEGAL_INSTRUCTION),
        (Store(y_pad_0=1), Cause.ILLEGAL_INSTRUCTION),
        (Store(x_pad_1=1, x_size=0), Cause.ILLEGAL_INSTRUCTION),
        (Store(pop_next=1), Cause.ILLEGAL_INSTRUCTION),
        (Store(push_next=1), Cause.ILLEGAL_INSTRUCTION),
        (Store(sram_base=TINY.acc.depth - 1, x_size=2), Cause.INDEX_OUT_OF_RANGE),
    ],
)
def test_stops_at_a_refused_instruction_after_all_before_it(wrong: Store, cause: Cause) -> None:
    run = Run([Store(), Store(dram_base=1), wrong, Store(dram_base=2)])
    assert run.fault == (20, cause)
    assert run.retired == 2
    assert np.array_equal(run.dram, stored((0, 0), (1, 0)))


@pytest.mark.parametrize("probability", [0, 0.4])
def test_stops_at_a_bus_error(probability: float) -> None:
    stores = [Store(dram_base=10 * n, x_size=4, push_prev=1) for n in range(5)]
    run = Run(stores, pause=pauses(probability), bad=[BASE + 22 * SIZE])
    assert run.fault == (20, Cause.BUS_ERROR)
    assert (run.retired, len(run.given)) == (2, 2)
    assert not run.idle
