"""Hazard check between the sequencer and the ALU."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, ShapeLike, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .sequencer import IndexedUop, Operands


class Write(data.StructLayout):
    """A micro-op in flight that may write accumulator ``dst``."""

    def __init__(self, index_width: int) -> None:
        super().__init__({"write": 1, "dst": index_width})


class Hazards(wiring.Component):
    """Stalls the next micro-op while one that it depends on is in flight.

    If ``registered``, indices are compared when a micro-op enters the stall register, with the
    writes that will be in flight one cycle later, so a single flip-flop drives the stall.

    Timing: a micro-op appears at ``o`` in the cycle in which it is offered, or, if ``registered``,
    in the cycle after it is accepted; throughput is one per cycle.

    Parameters
    ----------
    operands, context : of the micro-ops
    stages : stages of the pipeline behind ``o`` that have not written yet
    registered : the stall register exists

    Ports
    -----
    i, o : micro-ops
    works : the micro-op at ``o`` will write its ``dst``; high only if it is valid
    in_flight : per stage behind ``o``, the write of its micro-op, which moves one stage per cycle.
        The last stage writes if ``registered``, otherwise the last but one
    prefetches : (``registered``) the micro-op at ``o`` needs elements before its operands, so it
        does not enter the pipeline in this cycle
    moves_on, next_element : (``registered``) with ``prefetches``: one of these elements is read in
        this cycle, and from the next cycle on ``source_waits`` refers to ``next_element``
    waits : the micro-op at ``o`` must not enter the pipeline in this cycle
    source_waits : (``registered``) the micro-op at ``o`` must not read its source in this cycle
        without forwarding
    coming_waits : (``registered``) the same for the micro-op at ``i``, if the one at ``o`` enters
    """

    def __init__(
        self, operands: Operands, context: ShapeLike, stages: int, registered: bool
    ) -> None:
        item = stream.Signature(IndexedUop(operands, context))
        self._registered = registered
        self._write = Write(operands["dst"])
        super().__init__(
            {
                "i": In(item),
                "o": Out(item),
                "works": In(1),
                "in_flight": In(data.ArrayLayout(self._write, stages)),
                "waits": Out(1),
                **(_prefetch_ports(operands["src"]) if registered else {}),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        if not self._registered:
            m.d.comb += [
                self.i.ready.eq(self.o.ready),
                self.o.valid.eq(self.i.valid),
                self.o.payload.eq(self.i.payload),
                self.waits.eq(self._depends(list(self.in_flight)).any()),
            ]
            return m
        item = Signal(self.o.payload.shape(), reset_less=True)
        # Per stage, whether its write hits this micro-op's destination or source; the last stage
        # writes.
        dsts, srcs = (Signal(len(self.in_flight), name=name) for name in ("dsts", "srcs"))
        dsts_next, srcs_next = Signal.like(dsts), Signal.like(srcs)
        waits, source_waits = Signal(), Signal()
        enters = Signal(self._write)
        following = [enters, *self.in_flight]
        incoming = self.i.payload
        reads = ~incoming.context.use_immediate
        # No micro-op arrives while one that has not failed prefetches.
        prefetches = self.o.valid & self.prefetches
        source = Mux(prefetches, self.next_element, incoming.indices.src)
        hits = Cat(w.write & (w.dst == source) for w in following)
        comes_after = hits & reads.replicate(len(hits))
        m.d.comb += [
            self.o.payload.eq(item),
            self.waits.eq(waits),
            self.source_waits.eq(source_waits),
            self.coming_waits.eq(comes_after.any()),
            dsts_next.eq(dsts << 1),
            srcs_next.eq(srcs << 1),
            self.i.ready.eq(~self.o.valid | self.o.ready),
            # When another micro-op arrives, this one is in the first stage.
            enters.write.eq(self.works),
            enters.dst.eq(item.indices.dst),
        ]
        with m.If(self.prefetches & self.moves_on):
            # The micro-op itself is not in flight.
            m.d.comb += srcs_next.eq(Cat(Const(0, 1), hits[1:-1]))
        with m.If(self.i.ready):
            m.d.comb += [
                dsts_next.eq(Cat(w.write & (w.dst == incoming.indices.dst) for w in following)),
                srcs_next.eq(comes_after),
            ]
            m.d.sync += [self.o.valid.eq(self.i.valid), item.eq(incoming)]
        m.d.sync += [
            dsts.eq(dsts_next),
            srcs.eq(srcs_next),
            # Data written when the micro-op enters are forwarded.
            waits.eq((dsts_next | srcs_next)[:-1].any()),
            source_waits.eq(srcs_next.any()),
        ]
        return m

    def _depends(self, writes: list[Any]) -> Value:
        """Per write, whether the micro-op at ``i`` reads or writes the same accumulator."""
        item = self.i.payload
        reads = ~item.context.use_immediate
        return Cat(
            write.write
            & ((write.dst == item.indices.dst) | (reads & (write.dst == item.indices.src)))
            for write in writes
        )


def _prefetch_ports(index_width: int) -> dict[str, Any]:
    return {
        "prefetches": In(1),
        "moves_on": In(1),
        "next_element": In(index_width),
        "source_waits": Out(1),
        "coming_waits": Out(1),
    }
