"""Operand prefetch of the ALU: sources, parameters, factors and tables."""

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import AluOp
from amaranth_vta.hw.timing import copied_sources

from .gemm import acc_read_port
from .sequencer import IndexedUop


class SourceReader(wiring.Component):
    """Reads the source of a micro-op and, before it, the parameters, factor or table that the
    micro-op needs; for a pipeline with a stall register.

    The last accumulators (`copied_sources`) have a second copy: a source among them is read
    together with the destination when the micro-op enters the pipeline. Any other source is read
    ahead and kept. It is read when the micro-op arrives, if its predecessor in the same instruction
    reads its destination in the other bank, or else in a separate cycle. It is reused if the next
    micro-op has the same source.

    Timing: only a source that is read in a separate cycle takes an additional cycle. ``src_read``
    returns copied sources in the next cycle, ``ahead_read`` others one cycle later; the unused one
    returns 0.

    Parameters
    ----------
    config : of the machine
    item : layout of micro-ops

    Ports
    -----
    comes, coming : whether a micro-op enters the stall register, and the micro-op
    item, works : the micro-op in the register, and whether it will execute
    coming_waits, waits : a micro-op in flight, or entering the pipeline, writes its source, or with
        ``asks`` the requested element, so a read would return stale data
    ahead : it needs elements before its source; registered
    asks, granted, moves_on : request for the next of these elements, its grant, and whether a grant
        advances to the element after it; without ``asks`` reading restarts at the first one
    next_element : the element after it
    late : elements without a copy are read: they arrive one cycle later
    ready : the source has been read, or need not be read ahead
    busy_ports, dst_read, src_read, src_read_clear, ahead_read, ahead_read_keeps : as in `AluUnit`
    """

    def __init__(self, config: Config, item: IndexedUop) -> None:
        self._config = config
        read_port = acc_read_port(config)
        super().__init__(
            {
                "comes": In(1),
                "coming": In(item),
                "coming_waits": In(1),
                "item": In(item),
                "works": In(1),
                "waits": In(1),
                "ahead": In(1),
                "asks": In(1),
                "granted": Out(1),
                "moves_on": In(1),
                "next_element": Out(self._config.acc.index_width),
                "late": Out(1),
                "ready": Out(1),
                "busy_ports": In(2),
                "dst_read": Out(read_port),
                "src_read": Out(read_port),
                "src_read_clear": Out(1),
                "ahead_read": Out(acc_read_port(config, cycles=2)),
                "ahead_read_keeps": Out(2),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        coming, item, port = self.coming, self.item, self.ahead_read
        # Determined when the micro-op arrives, since the result has a high fan-out.
        needs, keeps = Signal(), Signal()
        reads, continues, stays, early, is_free = (
            Signal(name=name) for name in ("reads", "continues", "stays", "early", "is_free")
        )
        m.d.comb += [
            reads.eq(self._reads(coming) & ~self._has_copy(coming.indices.src)),
            # The arriving micro-op belongs to the same instruction as the leaving one, and has as
            # many operands.
            continues.eq(self.works & ~item.last),
            stays.eq(
                continues
                & (item.indices.src == coming.indices.src)
                & (item.indices.src != item.indices.dst)
            ),
            early.eq(
                continues
                & (item.indices.dst[-1] != coming.indices.src[-1])
                & is_free
                & ~self.coming_waits
            ),
        ]
        with m.If(self.comes):
            m.d.sync += [keeps.eq(reads), needs.eq(reads & ~stays & ~early)]
        # The next element to read before the source.
        element = Signal(self._config.acc.index_width)
        with m.If(~self.asks):
            # Restart, since a table may have to be read again.
            m.d.sync += element.eq(self._first_ahead(item))
        with m.Elif(self.granted & self.moves_on):
            m.d.sync += element.eq(self.next_element)
        with m.If(self.comes):
            first = self._first_ahead(coming)
            m.d.sync += [element.eq(first), self.late.eq(~self._has_copy(first))]

        reads_source, reads_early = Signal(), Signal()
        index = Signal(self._config.acc.index_width)
        gives_kept = Mux(self.ahead, self.late, keeps)
        m.d.comb += [
            self.ready.eq(~needs),
            self.next_element.eq(element + 1),
            index.eq(Mux(self.ahead, element, Mux(needs, item.indices.src, coming.indices.src))),
            is_free.eq(~self.busy_ports.bit_select(index[-1], 1)),
            self.granted.eq(self.asks & ~self.waits & (~self.late | is_free)),
            reads_source.eq(self.works & needs & ~self.ahead & ~self.waits & is_free),
            reads_early.eq(self.comes & reads & early),
            port.enable.eq((self.granted & self.late) | reads_source | reads_early),
            port.index.eq(index),
            self.ahead_read_keeps.eq(Mux(keeps & ~self.ahead, Const(1) << item.indices.src[-1], 0)),
            self.dst_read.enable.eq(self.works & ~self.ahead & ~needs),
            self.dst_read.index.eq(item.indices.dst),
            self.src_read.enable.eq(self.works),
            self.src_read.index.eq(Mux(self.ahead, element, item.indices.src)),
            self.src_read_clear.eq(gives_kept | item.context.use_immediate),
        ]
        with m.If(reads_source):
            m.d.sync += needs.eq(0)
        return m

    def _has_copy(self, index: Value) -> Value:
        copied = copied_sources(self._config)
        above = index[(copied - 1).bit_length() : self._config.acc.index_width]
        return above.all() if len(above) else Const(1, 1)

    def _reads(self, item: Any) -> Value:
        """Whether the operation of a micro-op has an accumulator as second operand."""
        operation = item.context.operation
        reads = item.enable & ~item.context.use_immediate
        for other in (AluOp.REQUANTIZE, AluOp.LOOKUP):
            reads &= operation != other
        return reads

    def _first_ahead(self, item: Any) -> Value:
        """The first element that the micro-op needs before its source."""
        if not self._config.multiply_add:
            return item.indices.src
        adds = item.context.operation == AluOp.MULTIPLY_ADD
        return Mux(adds, item.context.immediate[: self._config.acc.index_width], item.indices.src)
