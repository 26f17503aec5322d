"""Event counters whose sums share a small memory."""

from collections.abc import Mapping
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.registers import COUNTER_WIDTH


class CounterBank(wiring.Component):
    """Counts events, up to `COUNTER_WIDTH` bits per counter.

    Events are registered, then accumulated in a few flip-flops per counter. Each cycle one counter,
    in round-robin order, is added to its sum in memory.

    Timing: a sum lags by one round of the counters plus two cycles, until ``settled``.

    Parameters
    ----------
    events : name of each counter, and the width of its increment

    Ports
    -----
    clear : sets all counters to zero; events of the next cycle count
    counting : events may occur
    index : selects the sum, in the order of ``events``
    value : that sum, in the same cycle
    settled : no event occurred for a whole round, so the sums are complete
    one for each counter, by its name : the increment in this cycle
    """

    def __init__(self, events: Mapping[str, int]) -> None:
        self._events = dict(events)
        self._rounds = 1 << (len(self._events) - 1).bit_length()
        super().__init__(
            {
                "clear": In(1),
                "counting": In(1),
                "index": In(range(self._rounds)),
                "value": Out(COUNTER_WIDTH),
                "settled": Out(1),
                **{name: In(width) for name, width in self._events.items()},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.sums = sums = Memory(shape=COUNTER_WIDTH, depth=self._rounds, init=[])
        write = sums.write_port()
        read, show = sums.read_port(domain="comb"), sums.read_port(domain="comb")
        turn = Signal(range(self._rounds))
        # Counters whose sum in memory dates from before ``clear``, and counters whose latest
        # increments are not in their sum yet.
        stale, unsettled = Signal(range(self._rounds + 1)), Signal(range(self._rounds + 2))
        recent = Signal(max(self._recent_width(width) for width in self._events.values()))
        m.d.sync += turn.eq(turn + 1)
        with m.If(self.clear):
            m.d.sync += stale.eq(self._rounds)
        with m.Elif(stale != 0):
            m.d.sync += stale.eq(stale - 1)
        counted_before = Signal()
        m.d.sync += counted_before.eq(self.counting)
        with m.If(self.clear | self.counting | counted_before):
            m.d.sync += unsettled.eq(self._rounds + 1)
        with m.Elif(unsettled != 0):
            m.d.sync += unsettled.eq(unsettled - 1)
        # The counter to update, one cycle after its turn, and its increment.
        place, amount, restarts = Signal.like(turn), Signal.like(recent), Signal()
        m.d.sync += [
            place.eq(turn),
            amount.eq(Mux(self.clear, 0, recent)),
            restarts.eq(self.clear | (stale != 0)),
        ]
        m.d.comb += [
            read.addr.eq(place),
            write.addr.eq(place),
            write.data.eq(Mux(restarts, 0, read.data) + amount),
            write.en.eq(1),
            show.addr.eq(self.index),
            self.value.eq(show.data),
            self.settled.eq((unsettled == 0) & ~self.counting & ~counted_before),
        ]
        # Increments since each counter's last turn, stored as bit planes: bit n of all counters
        # together.
        added = [Signal(width, name=f"added_{name}") for name, width in self._events.items()]
        for name, event in zip(self._events, added, strict=True):
            m.d.sync += event.eq(Mux(self.clear, 0, getattr(self, name)))
        mine = Signal(len(added), init=1)
        m.d.sync += mine.eq(1 << (turn + 1)[: len(turn)])
        carry: Any = 0
        for number in range(len(recent)):
            plane = Signal(len(added), name=f"plane_{number}")
            bits = Cat(event[number] if number < len(event) else 0 for event in added)
            wide = Cat(self._recent_width(len(event)) > number for event in added)
            kept = plane & ~mine
            with m.If(self.clear):
                m.d.sync += plane.eq(0)
            with m.Else():
                m.d.sync += plane.eq((kept ^ bits ^ carry) & wide)
            # A named signal: an expression that contains its predecessor twice would double in size
            # with each plane.
            carried = Signal(len(added), name=f"carried_{number}")
            m.d.comb += carried.eq((kept & bits) | (kept & carry) | (bits & carry))
            carry = carried
            m.d.comb += recent[number].eq(plane.bit_select(turn, 1))
        return m

    def _recent_width(self, width: int) -> int:
        """Width of the sum between two turns for increments of ``width`` bits."""
        return (self._rounds * ((1 << width) - 1)).bit_length()
