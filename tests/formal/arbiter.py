"""The arbiter of the memory's read side neither loses nor mixes up anything, and no reader
starves."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Assert, Assume, Cat, Cover, Module, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from amaranth_vta.hw.bus import axi

from .lists import List, assume_stable
from .proving import Proof

_DATA = 2
# Scaled down from 8 and 128.
_BURSTS_IN_FLIGHT, _BEATS_AHEAD = 3, 4
# Maximum number of other readers' bursts that start while a reader waits.
_MOST_BEFORE = {"fetch": 1, "load": 3, "compute": 3}


class ArbiterProperty(wiring.Component):
    """Checked against lists of bursts and beats: requests reach the bus unchanged and in the order
    of acceptance, and each beat reaches its reader, in order.

    Requests have one or two beats. Memory answers in any cycle. Memory may stall requests, and
    readers may stall beats, for any time. ``stop``, once set, stays set.
    """

    def __init__(self, module: Any) -> None:
        self._arbiter = module.ReadArbiter(_DATA)
        super().__init__(
            {
                **{f"{name}_valid": In(1) for name in _MOST_BEFORE},
                **{f"{name}_request": In(2) for name in _MOST_BEFORE},
                **{f"{name}_takes": In(1) for name in _MOST_BEFORE},
                "bus_takes": In(1),
                "answers": In(1),
                "data": In(_DATA),
                "error": In(1),
                "stop": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.arbiter = arbiter = self._arbiter
        readers = [getattr(arbiter, name) for name in _MOST_BEFORE]
        for name, reader in zip(_MOST_BEFORE, readers, strict=True):
            given = getattr(self, f"{name}_request")
            m.d.comb += [
                reader.request.valid.eq(getattr(self, f"{name}_valid")),
                reader.request.payload.address.eq(given),
                reader.request.payload.length.eq(given[0]),
                reader.beat.ready.eq(getattr(self, f"{name}_takes")),
            ]
            assume_stable(m, reader.request, name)
        stopped = Signal()
        m.d.sync += stopped.eq(self.stop)
        m.d.comb += [arbiter.stop.eq(self.stop), Assume(self.stop | ~stopped)]

        asked = Signal(len(readers))
        m.d.comb += asked.eq(Cat(item.request.valid & item.request.ready for item in readers))
        length = Signal(2)
        for at, reader in enumerate(readers):
            with m.If(asked[at]):
                m.d.comb += length.eq(reader.request.payload.length + 1)
        m.d.comb += Assert((asked & (asked - 1)) == 0)
        requests = self._requests(m, readers, asked)
        beats, ends = self._memory(m)
        owners, taken = self._beats(m, readers, asked, beats)

        ahead = Signal(5)
        m.d.sync += ahead.eq(ahead + length - taken)
        room = (
            (requests.count == 0)
            & (owners.count < _BURSTS_IN_FLIGHT - 1)
            & (ahead < _BEATS_AHEAD)
            & ~self.stop
        )
        wanted = Cat(item.request.valid for item in readers).any()
        m.d.comb += [
            # No request waits without a reason.
            Assert(asked.any() | ~wanted | ~room),
            Assert(~asked.any() | ((ahead < _BEATS_AHEAD) & ~self.stop)),
            Assert(owners.count <= _BURSTS_IN_FLIGHT),
            Assert(arbiter.idle == (owners.count == 0)),
        ]
        self._check_turns(m, readers, asked)
        served = Signal(len(readers))
        m.d.sync += served.eq(served | asked)
        m.d.comb += Cover(served.all() & arbiter.idle & ~ends)
        return m

    def _requests(self, m: Module, readers: list[Any], asked: Signal) -> List:
        """Requests that were accepted and are not on the bus yet."""
        bus = self._arbiter.bus.request
        request = Signal(len(Value.cast(bus.payload)))
        for at, reader in enumerate(readers):
            with m.If(asked[at]):
                m.d.comb += request.eq(Value.cast(reader.request.payload))
        m.submodules.requests = requests = List(len(request), _BURSTS_IN_FLIGHT + 2)
        m.d.comb += [
            bus.ready.eq(self.bus_takes),
            requests.put.eq(asked.any()),
            requests.item.eq(request),
            requests.take.eq(bus.valid & bus.ready),
            Assert(bus.valid == (requests.count != 0)),
            Assert(~bus.valid | (Value.cast(bus.payload) == requests.items[0])),
        ]
        return requests

    def _memory(self, m: Module) -> tuple[List, Signal]:
        """Beats returned by memory and not yet accepted by a reader."""
        bus = self._arbiter.bus
        m.submodules.bursts = bursts = List(1, _BURSTS_IN_FLIGHT + 2)
        second, last = Signal(), Signal()
        answers = Signal()
        m.d.comb += [
            answers.eq(bus.beat.valid & bus.beat.ready),
            last.eq(second == bursts.items[0]),
            bursts.put.eq(bus.request.valid & bus.request.ready),
            bursts.item.eq(bus.request.payload.length),
            bursts.take.eq(answers & last),
            bus.beat.valid.eq(self.answers & (bursts.count != 0)),
            bus.beat.payload.eq(Cat(self.data, self.error, last)),
        ]
        assume_stable(m, bus.beat, "answer")
        with m.If(answers):
            m.d.sync += second.eq(~last)
        m.submodules.beats = beats = List(_DATA + 2, 4)
        m.d.comb += [beats.put.eq(answers), beats.item.eq(Value.cast(bus.beat.payload))]
        return beats, answers

    def _beats(
        self, m: Module, readers: list[Any], asked: Signal, beats: List
    ) -> tuple[List, Signal]:
        """The readers of bursts in flight, and whether a beat leaves the arbiter."""
        m.submodules.owners = owners = List(2, _BURSTS_IN_FLIGHT + 2)
        taken = Signal()
        present = beats.count != 0
        for at, reader in enumerate(readers):
            mine = (owners.count != 0) & (owners.items[0] == at)
            with m.If(asked[at]):
                m.d.comb += owners.item.eq(at)
            m.d.comb += [
                Assert(reader.beat.valid == (present & mine & ~self.stop)),
                Assert(~reader.beat.valid | (Value.cast(reader.beat.payload) == beats.items[0])),
            ]
            with m.If(reader.beat.valid & reader.beat.ready):
                m.d.comb += taken.eq(1)
        # A stopped run accepts and drops arriving beats.
        with m.If(self.stop & present):
            m.d.comb += taken.eq(1)
        last = data.View(data.StructLayout({"beat": _DATA + 1, "last": 1}), beats.items[0]).last
        m.d.comb += [
            beats.take.eq(taken),
            owners.put.eq(asked.any()),
            owners.take.eq(taken & last),
        ]
        return owners, taken

    def _check_turns(self, m: Module, readers: list[Any], asked: Signal) -> None:
        """While a reader waits, few bursts of others start."""
        for at, (name, reader) in enumerate(zip(_MOST_BEFORE, readers, strict=True)):
            others = Signal(4, name=f"before_{name}")
            with m.If(~reader.request.valid | asked[at]):
                m.d.sync += others.eq(0)
            with m.Elif(asked.any()):
                m.d.sync += others.eq(others + 1)
            m.d.comb += Assert(others <= _MOST_BEFORE[name])


PROOFS = (
    Proof(
        name="read arbiter",
        modules=(axi,),
        specify=ArbiterProperty,
        mode="bmc",
        depth=12,
        bugs=(
            ("owners.o.ready.eq(taken & beats.o.payload.last)", "owners.o.ready.eq(taken)"),
            ("requests.i.ready & owners.i.ready &", "owners.i.ready &"),
            ("requests.i.ready & owners.i.ready &", "requests.i.ready &"),
            ("< BEATS_AHEAD) & ~self.stop", "< BEATS_AHEAD)"),
            ("~after_fetch | ~others", "1"),
            ("with m.If(chosen != Reader.FETCH):", "with m.If(1):"),
        ),
        smaller=(
            ("Reader}), BURSTS_IN_FLIGHT", f"Reader}}), {_BURSTS_IN_FLIGHT}"),
            ("total < BEATS_AHEAD", f"total < {_BEATS_AHEAD}"),
        ),
    ),
)
