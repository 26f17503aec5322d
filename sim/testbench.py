"""Helpers for tests of hardware components: streams, clocks, and reasons to wait.

A test drives a component's input stream with `put_all`, collects its output stream with
`get_all`, and passes each of them a `Pauses` so that the same test runs at full rate, with gaps
between the items, and under backpressure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from amaranth.sim import Simulator

Pauses = Callable[[], bool]
"""Says, once a cycle, whether to wait for that cycle."""


def never() -> bool:
    return False


def pauses(probability: float, seed: int = 0) -> Pauses:
    """Waits in each cycle with this probability, the same way for the same seed."""
    generator = random.Random(seed)
    return lambda: generator.random() < probability


async def put_all(ctx: Any, stream: Any, payloads: Iterable[Any], pause: Pauses = never) -> None:
    """Offers each payload on ``stream`` until it is taken."""
    for payload in payloads:
        while pause():
            await ctx.tick()
        ctx.set(stream.payload, payload)
        ctx.set(stream.valid, 1)
        await ctx.tick().until(stream.ready)
        ctx.set(stream.valid, 0)


async def get_all(
    ctx: Any, stream: Any, count: int, pause: Pauses = never, within: int = 100_000
) -> list[Any]:
    """Takes ``count`` payloads; `TimeoutError` if they do not come ``within`` so many cycles."""
    payloads: list[Any] = []
    for _ in range(within):
        if len(payloads) == count:
            return payloads
        if pause():
            await ctx.tick()
            continue
        ctx.set(stream.ready, 1)
        _, _, valid, payload = await ctx.tick().sample(stream.valid, stream.payload)
        if valid:
            payloads.append(payload)
        ctx.set(stream.ready, 0)
    if len(payloads) == count:
        return payloads
    raise TimeoutError(f"{len(payloads)} of {count} items came within {within} cycles")


def simulate(component: Any, *testbenches: Callable[[Any], Any], waves: str | None = None) -> None:
    """Runs the testbenches on the component, clocked, until all have ended."""
    simulator = Simulator(component)
    simulator.add_clock(1e-8)
    for testbench in testbenches:
        simulator.add_testbench(testbench)
    if waves is None:
        simulator.run()
    else:
        with simulator.write_vcd(waves):
            simulator.run()
