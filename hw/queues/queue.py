"""Typed queues between modules, and the counters that carry dependence tokens."""

from typing import Any

from amaranth.hdl import Module, Mux, Shape, ShapeLike, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa

from .levels import next_count, next_exceeds


class Queue(wiring.Component):
    """A FIFO whose payloads keep their shape.

    ``o.payload`` is undefined while ``o.valid`` is low. With a depth of 2 it is registered. A
    deeper queue is a LUT RAM with asynchronous read, which needs neither an output register nor a
    bypass. With ``in_block_ram`` or ``registered`` the output is registered, and a push into an
    empty queue is bypassed to it.

    Timing: an item pushed in one cycle can be popped in the next; while the queue is neither empty
    nor full, throughput is one push and one pop per cycle::

        i    a   b   c
        o        a   b   c

    Parameters
    ----------
    shape : of a payload
    depth : capacity, at least 2, since a depth of 1 cannot sustain one item per cycle
    in_block_ram, registered : of a queue deeper than 2: its storage is block RAM, or
        ``o.payload`` comes from flip-flops
    """

    def __init__(
        self,
        shape: ShapeLike,
        depth: int,
        *,
        in_block_ram: bool = False,
        registered: bool = False,
    ) -> None:
        self._shape = shape
        self._depth = depth
        self._in_block_ram = in_block_ram
        self._registered = registered
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        if self._depth == 2:
            self._add_registers(m)
        else:
            self._add_memory(m)
        return m

    def _add_registers(self, m: Module) -> None:
        """An output register plus a skid buffer."""
        out, later = (
            Signal(Shape.cast(self._shape), name=name, reset_less=True) for name in ("out", "later")
        )
        holds, moves = Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(~holds),
            moves.eq(~self.o.valid | self.o.ready),
            Value.cast(self.o.payload).eq(out),
        ]
        with m.If(moves):
            m.d.sync += [
                self.o.valid.eq(holds | self.i.valid),
                holds.eq(0),
                # Regardless of ``i.valid``, which arrives late in the cycle.
                out.eq(Mux(holds, later, Value.cast(self.i.payload))),
            ]
        with m.Elif(self.i.valid):
            m.d.sync += holds.eq(1)
        with m.If(~holds):
            m.d.sync += later.eq(Value.cast(self.i.payload))

    def _add_memory(self, m: Module) -> None:
        # A block RAM word is never read in the cycle in which it is written.
        attributes = {"ram_style": "block", "no_rw_check": 1} if self._in_block_ram else {}
        m.submodules.storage = storage = Memory(
            shape=Shape.cast(self._shape), depth=self._depth, init=[], attrs=attributes
        )
        write = storage.write_port()
        read = storage.read_port(domain="sync" if self._in_block_ram else "comb")
        level, full = Signal(range(self._depth + 1)), Signal()
        takes = Signal()
        m.d.comb += [
            self.i.ready.eq(~full),
            takes.eq(self.o.valid & self.o.ready),
            write.data.eq(Value.cast(self.i.payload)),
            write.en.eq(self.i.valid & self.i.ready),
        ]
        change = level, write.en, takes
        m.d.sync += [
            level.eq(next_count(*change)),
            full.eq(next_exceeds(self._depth - 1, *change)),
            self.o.valid.eq(next_exceeds(0, *change)),
        ]
        head, tail = Signal.like(read.addr), Signal.like(write.addr)
        head_next = Mux(takes, _next(head, self._depth), head)
        m.d.comb += write.addr.eq(tail)
        m.d.sync += head.eq(head_next)
        with m.If(write.en):
            m.d.sync += tail.eq(_next(tail, self._depth))
        if self._registered:
            out = Signal(Shape.cast(self._shape), reset_less=True)
            alone = Signal(init=1)
            m.d.comb += [
                read.addr.eq(_next(head, self._depth)),
                Value.cast(self.o.payload).eq(out),
            ]
            m.d.sync += alone.eq(~next_exceeds(1, *change))
            with m.If(~self.o.valid | self.o.ready):
                m.d.sync += out.eq(Mux(alone, write.data, read.data))
            return
        if not self._in_block_ram:
            m.d.comb += [read.addr.eq(head), Value.cast(self.o.payload).eq(read.data)]
            return
        latest, bypasses = Signal(Shape.cast(self._shape), reset_less=True), Signal()
        m.d.comb += [
            read.addr.eq(head_next),
            Value.cast(self.o.payload).eq(Mux(bypasses, latest, read.data)),
        ]
        m.d.sync += [latest.eq(write.data), bypasses.eq(level == takes)]


def _next(pointer: Signal, depth: int) -> Value:
    wraps = depth & (depth - 1) == 0
    return pointer + 1 if wraps else Mux(pointer == depth - 1, 0, pointer + 1)


class TokenCounter(wiring.Component):
    """Counts the dependence tokens that one module has pushed and its neighbour has not popped.

    ``give`` increments and ``take`` decrements, possibly in the same cycle. The producer checks
    ``full`` first, the consumer ``available``.

    Timing: the new count is visible in the next cycle::

        give       1
        available      1
        take           1
        count      0   1   0
    """

    give: In(1)
    full: Out(1)
    take: In(1)
    available: Out(1)
    count: Out(range(isa.TOKEN_LIMIT + 1))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        change = self.count, self.give, self.take
        # Registered, since issue and retirement depend on them.
        m.d.sync += [
            self.count.eq(next_count(*change)),
            self.available.eq(next_exceeds(0, *change)),
            self.full.eq(next_exceeds(isa.TOKEN_LIMIT - 1, *change)),
        ]
        return m
