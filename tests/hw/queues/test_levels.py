"""Counts against Python's integers, for all counts and changes of a small width."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.queues.levels import next_count, next_exceeds
from amaranth_vta.sim.testbench.amaranth import simulate
from tests.support.clocked import Clocked


class Counting(wiring.Component):
    def __init__(self, width: int, least: int) -> None:
        self._least = least
        super().__init__(
            {"count": In(width), "up": In(1), "down": In(1), "next": Out(width), "above": Out(1)}
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        change = self.count, self.up, self.down
        m.d.comb += [
            self.next.eq(next_count(*change)),
            self.above.eq(next_exceeds(self._least, *change)),
        ]
        return m


@pytest.mark.parametrize("width", [1, 2, 4, 7])
@pytest.mark.parametrize("least", [0, 1, 2])
def test_counts_go_up_and_down(width: int, least: int) -> None:
    dut, size = Clocked(Counting(width, least)), 1 << width

    async def check(ctx: Any) -> None:
        for count, up, down in product(range(size), range(2), range(2)):
            ctx.set(dut.count, count)
            ctx.set(dut.up, up)
            ctx.set(dut.down, down)
            assert ctx.get(dut.next) == (count + up - down) % size
            if 0 <= count + up - down < size:
                assert ctx.get(dut.above) == (count + up - down > least), (count, up, down)

    simulate(dut, check)
