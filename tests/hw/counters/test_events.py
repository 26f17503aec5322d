"""Increments of the counters against Python, under random backpressure."""

from __future__ import annotations

import random
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.counters.events import burst_events, transfer_events, unit_events
from amaranth_vta.hw.timing import BURSTS_IN_FLIGHT
from amaranth_vta.sim.testbench.amaranth import shared, simulate

UNITS = 3
MOVED = data.StructLayout({"inp": 3, "wgt": 2})
EVENTS = {
    "read_bursts": 1,
    "read_latency": range(BURSTS_IN_FLIGHT + 1),
    "load_waits_for_memory": 1,
    "inp_elements": 3,
    "wgt_elements": 2,
    "gemm_instructions": 1,
    "gemm_busy": 1,
}


class Counted(wiring.Component):
    """The events of one memory port, one module and its unit 2."""

    def __init__(self) -> None:
        inputs = {"ends": 1, "held": 1, "accessing": 1, "moved": MOVED}
        inputs |= {"starts": UNITS, "busy": UNITS}
        super().__init__(
            {
                "request": In(stream.Signature(8)),
                "beat": In(stream.Signature(8)),
                **{name: In(shape) for name, shape in inputs.items()},
                **{name: Out(shape) for name, shape in EVENTS.items()},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        events = burst_events(m, "read", self.request, self.ends, self.held)
        events |= transfer_events("load", self, self.beat, self.moved)
        events |= unit_events("gemm", self, 2)
        m.d.comb += [getattr(self, name).eq(events[name]) for name in EVENTS]
        return m


def test_a_burst_counts_when_its_request_is_accepted_and_in_each_cycle_until_it_ends() -> None:
    dut = shared(Counted)

    async def check(ctx: Any) -> None:
        rng, in_flight, most = random.Random(1), 0, 0
        for _ in range(400):
            valid, ready = rng.randrange(2), rng.randrange(2)
            ends = in_flight > 0 and rng.random() < 0.2
            begins = bool(valid and ready and in_flight < BURSTS_IN_FLIGHT)
            held = rng.random() < 0.01
            ctx.set(dut.request.valid, valid)
            ctx.set(dut.request.ready, ready and in_flight < BURSTS_IN_FLIGHT)
            ctx.set(dut.ends, ends)
            ctx.set(dut.held, held)
            assert ctx.get(dut.read_bursts) == begins
            assert ctx.get(dut.read_latency) == in_flight
            in_flight = 0 if held else in_flight + begins - ends
            most = max(most, in_flight)
            await ctx.tick()
        assert most == BURSTS_IN_FLIGHT

    simulate(dut, check)


def test_a_module_waits_for_memory_while_it_accesses_it_and_no_beat_is_transferred() -> None:
    dut = shared(Counted)

    async def check(ctx: Any) -> None:
        for number in range(8):
            accessing, valid, ready = (number >> bit & 1 for bit in range(3))
            ctx.set(dut.accessing, accessing)
            ctx.set(dut.beat.valid, valid)
            ctx.set(dut.beat.ready, ready)
            ctx.set(dut.moved, {"inp": number, "wgt": 3 - number % 4})
            assert ctx.get(dut.load_waits_for_memory) == (accessing and not (valid and ready))
            assert ctx.get(dut.inp_elements) == number
            assert ctx.get(dut.wgt_elements) == 3 - number % 4
            await ctx.tick()

    simulate(dut, check)


def test_a_unit_counts_its_own_instructions_and_busy_cycles() -> None:
    dut = shared(Counted)

    async def check(ctx: Any) -> None:
        for bits in range(1 << UNITS):
            ctx.set(dut.starts, bits)
            ctx.set(dut.busy, ~bits)
            assert ctx.get(dut.gemm_instructions) == bits >> 2
            assert ctx.get(dut.gemm_busy) == 1 - (bits >> 2)
            await ctx.tick()

    simulate(dut, check)
