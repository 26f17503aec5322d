"""Two initiators of word accesses share one target: `AccessArbiter`."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.boards.link import HostAccessSignature


class AccessArbiter(wiring.Component):
    """Forward the accesses of two initiators to one target, one at a time.

    Timing: requests and responses pass without a register. ``first`` has priority. The next request
    is forwarded in the cycle after the response to the current one. An initiator that is reset
    while its access is in flight has to ignore the response.

    Ports
    -----
    first, second : the initiators
    o : the target
    """

    first: In(HostAccessSignature())
    second: In(HostAccessSignature())
    o: Out(HostAccessSignature())

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        o, initiators = self.o, (self.first, self.second)
        in_flight, is_second = Signal(), Signal()
        with m.If(self.first.request.valid):
            self._offer(m, self.first, in_flight)
        with m.Else():
            self._offer(m, self.second, in_flight)
        with m.If(o.request.valid & o.request.ready):
            m.d.sync += [in_flight.eq(1), is_second.eq(~self.first.request.valid)]
        with m.Elif(o.done):
            m.d.sync += in_flight.eq(0)
        for number, initiator in enumerate(initiators):
            m.d.comb += [
                initiator.done.eq(o.done & in_flight & (is_second == number)),
                initiator.data.eq(o.data),
                initiator.error.eq(o.error),
            ]
        return m

    def _offer(self, m: Module, initiator: Any, in_flight: Signal) -> None:
        m.d.comb += [
            self.o.request.payload.eq(initiator.request.payload),
            self.o.request.valid.eq(initiator.request.valid & ~in_flight),
            initiator.request.ready.eq(self.o.request.ready & ~in_flight),
        ]
