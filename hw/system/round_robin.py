"""Round-robin arbitration: `RoundRobin`, and `grant_requests` of several machines."""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out


class RoundRobin(wiring.Component):
    """Chooses one of ``count`` requesters: the first after the one that was granted last.

    A requester that keeps its request waits for at most ``count`` - 1 grants to others.

    Timing: ``chosen`` follows ``requests`` in the same cycle. It may change as long as no grant is
    given.

    Ports
    -----
    requests : a bit per requester
    chosen : the requester to serve; undefined if there is none
    granted : ``chosen`` is served in this cycle
    """

    def __init__(self, count: int) -> None:
        self._count = count
        super().__init__({"requests": In(count), "chosen": Out(range(count)), "granted": In(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        latest = Signal.like(self.chosen)
        with m.If(self.granted):
            m.d.sync += latest.eq(self.chosen)
        with m.Switch(latest):
            for last in range(self._count):
                with m.Case(last):
                    # The last assignment has priority.
                    for distance in reversed(range(1, self._count + 1)):
                        place = (last + distance) % self._count
                        with m.If(self.requests[place]):
                            m.d.comb += self.chosen.eq(place)
        return m


def grant_requests(
    m: Module, turns: RoundRobin, machines: Sequence[Any], requests: Any, free: Value
) -> None:
    """In cycles in which ``free``, pass the request of the machine chosen by ``turns`` to
    ``requests``, a stream of `SharedRequest`; ``machines`` are streams of `BurstRequest`.
    """
    m.d.comb += [
        turns.requests.eq(Cat(request.valid for request in machines)),
        turns.granted.eq(turns.requests.any() & free),
        requests.payload.id.eq(turns.chosen),
        requests.valid.eq(turns.granted),
    ]
    with m.Switch(turns.chosen):
        for number, request in enumerate(machines):
            with m.Case(number):
                m.d.comb += [requests.payload.burst.eq(request.payload), request.ready.eq(free)]
