"""Typed queues between modules, and the counters that carry dependence tokens."""

from typing import Any

from amaranth.hdl import Module, Mux, Shape, ShapeLike, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa


class Queue(wiring.Component):
    """A first-in first-out queue of payloads that keep their shape.

    The output is registered: ``o.payload`` comes straight from flip-flops, and is undefined while
    ``o.valid`` is low.

    Timing: an item offered in one cycle can be taken in the next; while the queue is neither empty
    nor full, one goes in and one comes out in every cycle::

        i    a   b   c
        o        a   b   c

    Parameters
    ----------
    shape : of a payload
    depth : the most items that it holds, output register included; 2 or more, since a depth of 1
        could not pass an item in every cycle
    """

    def __init__(self, shape: ShapeLike, depth: int) -> None:
        self._shape = shape
        self._depth = depth
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bits = Shape.cast(self._shape)
        stored = self._depth - 1
        m.submodules.storage = storage = Memory(shape=bits, depth=stored, init=[])
        write, read = storage.write_port(), storage.read_port(domain="comb")
        head, tail = Signal(range(stored)), Signal(range(stored))
        level, level_next = Signal(range(stored + 1)), Signal(range(stored + 1))
        # Whether the storage holds anything: a flip-flop that selects the output alone, so that
        # each of its bits takes one LUT.
        holds = Signal()

        put, moves = Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(level != stored),
            put.eq(self.i.valid & self.i.ready),
            moves.eq(~self.o.valid | self.o.ready),
            write.addr.eq(tail),
            write.data.eq(Value.cast(self.i.payload)),
            # An item that finds the storage empty and the output free bypasses it.
            write.en.eq(put & (holds | ~moves)),
            read.addr.eq(head),
            level_next.eq(level + write.en - (holds & moves)),
        ]
        out = Signal(bits, reset_less=True)
        m.d.sync += [level.eq(level_next), holds.eq(level_next != 0)]
        with m.If(moves):
            m.d.sync += self.o.valid.eq(holds | self.i.valid)
            # Whether or not there is an item: ``i.valid`` is known late in a cycle.
            m.d.sync += out.eq(Mux(holds, read.data, Value.cast(self.i.payload)))
            with m.If(holds):
                m.d.sync += head.eq(_next(head, stored))
        with m.If(write.en):
            m.d.sync += tail.eq(_next(tail, stored))
        m.d.comb += Value.cast(self.o.payload).eq(out)
        return m


def _next(pointer: Signal, depth: int) -> Value:
    return Mux(pointer == depth - 1, 0, pointer + 1)


class TokenCounter(wiring.Component):
    """The tokens that one module has given to its neighbour and that are not taken yet.

    ``give`` counts up and ``take`` counts down, also both in one cycle. The giver looks at ``full``
    first, the taker at ``available``.

    Timing: the new count shows in the next cycle::

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
        m.d.comb += [
            self.full.eq(self.count == isa.TOKEN_LIMIT),
            self.available.eq(self.count != 0),
        ]
        m.d.sync += self.count.eq(self.count + self.give - self.take)
        return m
