"""The store module, apart from its storer and from the issue logic that it shares with load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.isa import Cause, Forward, Store, forward_base
from amaranth_vta.hw.store import Store as StoreModule
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

TINY = PRESETS["tiny"]
FORWARDING = replace(TINY, forward=1)
SIZE = TINY.out.element_bytes
BASE = 0x1000


class Run:
    """Stores from a scratchpad whose element n holds n + 1 in every byte."""

    def __init__(
        self,
        stores: Sequence[Store | Forward],
        *,
        pause: Pauses = never,
        bad: Sequence[int] = (),
        config: Config = TINY,
    ) -> None:
        dut = shared(StoreModule, config)
        # Index and element of each write to the inputs, and in the next list the retired count at
        # that time.
        self.inputs: list[tuple[int, int]] = []
        self.forwarded_after: list[int] = []
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
                if config.forward and ctx.get(dut.inp.enable):
                    self.inputs.append((ctx.get(dut.inp.index), ctx.get(dut.inp.data[0])))
                    self.forwarded_after.append(self.retired)
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
            entries = [checked_entry(config, x, 10 * n) for n, x in enumerate(stores)]
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


@pytest.mark.parametrize("probability", [0, 0.4])
def test_forwards_between_the_stores_around_it(probability: float) -> None:
    forward = Forward(sram_base=2, dram_base=forward_base(8, -1), x_size=2, x_pad_1=1, push_prev=1)
    stores: list[Store | Forward] = [Store(x_size=3), forward, forward, Store(dram_base=3)]
    run = Run(stores, pause=pauses(probability), config=FORWARDING)
    elements = [int.from_bytes([value] * SIZE, "little") for value in (9, 10, 255)]
    assert run.inputs == 2 * list(zip((2, 3, 4), elements, strict=True))
    assert run.forwarded_after[0] == 1
    assert (run.retired, len(run.given)) == (4, 2)
    assert np.array_equal(run.given[0], stored((0, 0), (1, 1), (2, 2)))
    assert np.array_equal(run.dram, stored((0, 0), (1, 1), (2, 2), (3, 0)))
    assert run.idle


def test_forwards_nothing_after_a_bus_error() -> None:
    stores: list[Store | Forward] = [Store(x_size=9), Forward(x_size=2, push_prev=1)]
    run = Run(stores, bad=[BASE + 2 * SIZE], config=FORWARDING)
    assert run.fault == (0, Cause.BUS_ERROR)
    assert (run.inputs, run.given) == ([], [])


@pytest.mark.parametrize(
    "wrong",
    [
        Forward(sram_base=FORWARDING.inp.depth - 1, x_pad_1=1),
        Forward(dram_base=forward_base(FORWARDING.acc.depth - 1), x_size=2),
    ],
)
def test_forwards_nothing_that_is_out_of_range(wrong: Forward) -> None:
    run = Run([Store(), wrong], config=FORWARDING)
    assert run.fault == (10, Cause.INDEX_OUT_OF_RANGE)
    assert run.inputs == []
