"""Micro-ops wait for their dependences in flight, and not longer than necessary."""

from __future__ import annotations

import random
from typing import Any

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.datapath.alu import AluContext, alu_operands
from amaranth_vta.hw.datapath.hazards import Hazards
from amaranth_vta.sim.testbench.amaranth import pauses, put_all, shared, simulate
from tests.support.clocked import Clocked

STAGES, COUNT = 4, 200


def hazards(stages: int, registered: bool) -> Clocked:
    return Clocked(Hazards(alu_operands(PRESETS["tiny"]), AluContext, stages, registered))


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize(("gaps", "stalls"), [(0, 0), (0.4, 0), (0, 0.3), (0.3, 0.3)])
def test_a_micro_op_waits_for_those_in_flight_that_it_names(
    registered: bool, gaps: float, stalls: float
) -> None:
    """Few accumulators, so that most micro-ops depend on one in flight; some write nothing.
    A write is forwarded in its cycle, except to a prefetched source.
    """
    generator = random.Random(1)
    items: list[dict[str, Any]] = [
        {
            "indices": {"dst": generator.randrange(6), "src": generator.randrange(6)},
            "enable": int(generator.random() < 0.9),
            "context": {"use_immediate": generator.randrange(2)},
        }
        for _ in range(COUNT)
    ]
    stages = STAGES + registered
    dut = shared(hazards, stages, registered)
    entered: list[int] = []

    async def put(ctx: Any) -> None:
        await put_all(ctx, dut.i, items, pauses(gaps, 1))

    async def check(ctx: Any) -> None:
        stall = pauses(stalls, 2)
        # If ``registered``, the last stage is being written.
        in_flight: list[int | None] = [None] * (STAGES + registered)
        for _ in range(4000):
            if len(entered) == COUNT:
                return
            for stage, dst in zip(dut.in_flight, in_flight, strict=True):
                ctx.set(stage.write, dst is not None)
                ctx.set(stage.dst, dst or 0)
            enters: int | None = None
            ctx.set(dut.o.ready, 0)
            ctx.set(dut.works, 0)
            if ctx.get(dut.o.valid):
                item = items[len(entered)]
                dst, src = item["indices"]["dst"], item["indices"]["src"]
                assert ctx.get(dut.o.payload.indices.dst) == dst
                named = {dst} if item["context"]["use_immediate"] else {dst, src}
                waits = ctx.get(dut.waits)
                assert waits == bool(named & set(in_flight[:STAGES])), len(entered)
                source = set() if item["context"]["use_immediate"] else {src}
                if registered:
                    assert ctx.get(dut.source_waits) == bool(source & set(in_flight)), len(entered)
                ctx.set(dut.works, item["enable"])
                if not stall() and not (waits and item["enable"]):
                    ctx.set(dut.o.ready, 1)
                    entered.append(len(entered))
                    enters = dst if item["enable"] else None
            if registered and ctx.get(dut.i.valid) and ctx.get(dut.i.ready):
                coming = items[len(entered)]
                reads = not coming["context"]["use_immediate"]
                writes = {enters, *in_flight}
                waits = reads and coming["indices"]["src"] in writes
                assert ctx.get(dut.coming_waits) == waits, len(entered)
            await ctx.tick()
            in_flight = [enters, *in_flight[:-1]]

    simulate(dut, check, background=[put])
    assert len(entered) == COUNT
