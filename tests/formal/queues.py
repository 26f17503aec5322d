"""Queues preserve items and order; token counters count."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Assert, Assume, Cover, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from amaranth_vta.hw.queues import queue

from .lists import List
from .proving import Proof

_BITS = 2


class QueueProperty(wiring.Component):
    """Checked against a list: the oldest item is at the output, one cycle after its push at the
    earliest, and stable until accepted. The queue is ready while at least two places are free, and
    never exceeds its depth.
    """

    def __init__(self, module: Any, depth: int, form: str) -> None:
        self._queue = module.Queue(_BITS, depth, **{form: True} if form else {})
        self._depth = depth
        super().__init__({"valid": In(1), "payload": In(_BITS), "ready": In(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.queue = queue = self._queue
        m.submodules.expected = expected = List(_BITS, self._depth + 2)
        count = expected.count
        m.d.comb += [
            queue.i.valid.eq(self.valid),
            queue.i.payload.eq(self.payload),
            queue.o.ready.eq(self.ready),
            expected.put.eq(queue.i.valid & queue.i.ready),
            expected.item.eq(queue.i.payload),
            expected.take.eq(queue.o.valid & queue.o.ready),
            Assert(queue.o.valid == (count != 0)),
            Assert(~queue.o.valid | (queue.o.payload == expected.items[0])),
            Assert(count <= self._depth),
            Assert(queue.i.ready | (count >= self._depth - 1)),
        ]
        filled = Signal()
        with m.If(count == self._depth):
            m.d.sync += filled.eq(1)
        m.d.comb += Cover(filled & (count == 0))
        return m


class TokenProperty(wiring.Component):
    """The count is the number of pushed minus popped tokens, and the flags for full and available
    are correct. The producer respects the first flag, the consumer the second.
    """

    def __init__(self, module: Any) -> None:
        self._counter = module.TokenCounter()
        super().__init__({"give": In(1), "take": In(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.counter = counter = self._counter
        given = Signal(range(_LIMIT + 1))
        m.d.comb += [
            counter.give.eq(self.give),
            counter.take.eq(self.take),
            Assume(~(self.give & counter.full)),
            Assume(~self.take | counter.available),
            Assert(counter.count == given),
            Assert(given <= _LIMIT),
            Assert(counter.full == (given == _LIMIT)),
            Assert(counter.available == (given != 0)),
        ]
        m.d.sync += given.eq(given + self.give - self.take)
        emptied = Signal()
        with m.If(counter.full):
            m.d.sync += emptied.eq(1)
        m.d.comb += Cover(emptied & ~counter.available)
        return m


# Token limit, scaled down from 1,023 so that the cover is reachable.
_LIMIT = 6

_BUGS_IN_REGISTERS = (
    ("with m.If(~holds):", "with m.If(moves):"),
    ("self.i.ready.eq(~holds)", "self.i.ready.eq(1)"),
    ("with m.If(moves):", "with m.If(moves | self.i.valid):"),
)
_BUGS_IN_MEMORY = (
    ("write.en.eq(self.i.valid & self.i.ready)", "write.en.eq(self.i.valid)"),
    ("full.eq(next_exceeds(self._depth - 1, *change))", "full.eq(0)"),
    ("takes.eq(self.o.valid & self.o.ready)", "takes.eq(self.o.ready)"),
    ("Mux(pointer == depth - 1, 0, pointer + 1)", "pointer + 1"),
)
_BUGS_BEHIND_MEMORY = (
    ("read.addr.eq(_next(head, self._depth))", "read.addr.eq(head)"),
    ("alone.eq(~next_exceeds(1, *change))", "alone.eq(~next_exceeds(0, *change))"),
    ("with m.If(~self.o.valid | self.o.ready):", "with m.If(self.o.ready):"),
)
_BUGS_IN_BLOCK_RAM = (
    ("bypasses.eq(level == takes)", "bypasses.eq(level == 0)"),
    ("read.addr.eq(head_next)", "read.addr.eq(head)"),
)

PROOFS = (
    *(
        Proof(
            name=f"queue of {depth}{', ' * bool(form)}{form}",
            modules=(queue,),
            specify=lambda module, depth=depth, form=form: QueueProperty(module, depth, form),
            mode="bmc",
            depth=2 * depth + 4,  # to be filled and emptied
            bugs=bugs,
        )
        for depth, form, bugs in (
            (2, "", _BUGS_IN_REGISTERS),
            (3, "", _BUGS_IN_MEMORY),
            (5, "", _BUGS_IN_MEMORY),
            (3, "registered", _BUGS_BEHIND_MEMORY),
            (3, "in_block_ram", _BUGS_IN_BLOCK_RAM),
        )
    ),
    Proof(
        name="token counter",
        modules=(queue,),
        specify=TokenProperty,
        mode="prove",
        depth=16,
        bugs=(
            ("self.count.eq(next_count(*change))", "self.count.eq(self.count + self.give)"),
            ("self.full.eq(next_exceeds(isa.TOKEN_LIMIT - 1, *change))", "self.full.eq(0)"),
        ),
        smaller=(("isa.TOKEN_LIMIT", str(_LIMIT)),),
    ),
)
