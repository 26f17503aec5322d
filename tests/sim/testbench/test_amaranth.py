from __future__ import annotations

from typing import Any

import pytest

from amaranth_vta.hw.queues.queue import Queue
from amaranth_vta.sim.testbench import amaranth
from amaranth_vta.sim.testbench.amaranth import simulate


def test_a_testbench_that_waits_for_what_does_not_come_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(amaranth, "_MAX_CYCLES", 100)
    queue = Queue(8, 2)

    # Not by `until`: Amaranth cannot close one that is left waiting.
    async def wait(ctx: Any) -> None:
        while not ctx.get(queue.o.valid):
            await ctx.tick()

    with pytest.raises(TimeoutError, match="has not ended after 100 cycles"):
        simulate(queue, wait)
