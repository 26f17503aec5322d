"""Machines on a shared bus: each receives its beats and responses, memory receives the bytes that
each writes, and no machine starves."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Assert, Assume, Cat, Cover, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from amaranth_vta.hw.system import reads, round_robin, widths, writes

from .lists import List, assert_stable, assume_stable
from .proving import Proof

_MACHINES = 2
# Scaled down: a machine's bus of a byte, words of two, and bursts of at most three beats.
_WIDTH, _BUS_WIDTH, _DEPTH = 8, 16, 3
_ADDRESS, _LENGTH = 3, 2
_BURSTS = 3
# Of all machines.
_REQUESTS = {
    "valid": In(_MACHINES),
    "address": In(_ADDRESS).array(_MACHINES),
    "length": In(_LENGTH).array(_MACHINES),
}
_SMALLER = (("BURSTS_IN_FLIGHT)", f"{_BURSTS})"),)


class TurnsProperty(wiring.Component):
    """A requester is chosen whenever there is one, and waits for at most ``count`` - 1 grants to
    others.
    """

    def __init__(self, module: Any, count: int) -> None:
        self._turns, self._count = module.RoundRobin(count), count
        super().__init__({"requests": In(count), "ready": In(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.turns = turns = self._turns
        granted, waited = Signal(), Signal(self._count)
        m.d.comb += [
            turns.requests.eq(self.requests),
            granted.eq(self.ready & self.requests.any()),
            turns.granted.eq(granted),
            Assert(~self.requests.any() | self.requests.bit_select(turns.chosen, 1)),
        ]
        for number in range(self._count):
            others = Signal(4, name=f"before_{number}")
            with m.If(~self.requests[number] | (granted & (turns.chosen == number))):
                m.d.sync += others.eq(0)
            with m.Elif(granted):
                m.d.sync += others.eq(others + 1)
            m.d.comb += Assert(others < self._count)
            with m.If(others == self._count - 1):
                m.d.sync += waited[number].eq(1)
        m.d.comb += Cover(waited.all())
        return m


class SharedReadsProperty(wiring.Component):
    """Memory returns each beat's address as its data, which identifies the beats that a machine
    receives: each machine receives the beats of its bursts, in order, with the errors of their
    words.

    Memory answers the words of a machine in order, and different machines in any order.
    It may stall requests, and machines may stall beats, for any time; words are never stalled.
    """

    def __init__(self, *modules: Any) -> None:
        self._shared = modules[-1].SharedReads(_MACHINES, _WIDTH, _BUS_WIDTH, _DEPTH)
        super().__init__(
            {
                **_REQUESTS,
                "takes": In(_MACHINES),
                "bus_takes": In(1),
                "answers": In(1),
                "answered": In(1),
                "error_address": In(_ADDRESS - 1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.shared = shared = self._shared
        bus = shared.bus
        # The word with an error is constant.
        error_before, started = Signal.like(self.error_address), Signal()
        m.d.sync += [error_before.eq(self.error_address), started.eq(1)]
        m.d.comb += [
            Assume(~started | (self.error_address == error_before)),
            bus.request.ready.eq(self.bus_takes),
            bus.beat.payload.id.eq(self.answered),
            Assert(bus.beat.ready),
        ]
        assert_stable(m, bus.request, "request")
        finished = Signal(_MACHINES)
        for number in range(_MACHINES):
            self._machine(m, number)
            self._memory(m, number)
            beat = shared.machines[number].beat
            with m.If(beat.valid & beat.ready & beat.payload.last):
                m.d.sync += finished[number].eq(1)
        m.d.comb += Cover(finished.all())
        return m

    def _machine(self, m: Module, number: int) -> None:
        """Requests of a machine, and the beats that it receives."""
        port = self._shared.machines[number]
        request, beat = port.request, port.beat
        burst = _ask(m, self, request, number)
        asked = List(len(burst), _BURSTS + 2)
        m.submodules[f"asked_{number}"] = asked
        place = Signal(_LENGTH, name=f"place_{number}")
        first, length = asked.items[0][:_ADDRESS], asked.items[0][_ADDRESS:]
        at = Signal(_ADDRESS, name=f"at_{number}")
        taken = beat.valid & beat.ready
        m.d.comb += [
            beat.ready.eq(self.takes[number]),
            asked.put.eq(request.valid & request.ready),
            asked.item.eq(burst),
            asked.take.eq(taken & beat.payload.last),
            at.eq(first + place),
            Assert(~beat.valid | (asked.count != 0)),
            Assert(~beat.valid | (beat.payload.data == at)),
            Assert(~beat.valid | (beat.payload.error == (at[1:] == self.error_address))),
            Assert(~beat.valid | (beat.payload.last == (place == length))),
        ]
        with m.If(taken):
            m.d.sync += place.eq(Mux(beat.payload.last, 0, place + 1))

    def _memory(self, m: Module, number: int) -> None:
        """Words that memory owes to a machine."""
        bus = self._shared.bus
        owed = List(_ADDRESS + 8, _BURSTS + 2)
        m.submodules[f"owed_{number}"] = owed
        place = Signal(8, name=f"word_{number}")
        address, length = owed.items[0][:_ADDRESS], owed.items[0][_ADDRESS:]
        mine = self.answered == number
        answers = bus.beat.valid & mine
        burst = bus.request.payload.burst
        word = Signal(_ADDRESS, name=f"address_{number}")
        m.d.comb += [
            owed.put.eq(bus.request.valid & bus.request.ready & (bus.request.payload.id == number)),
            owed.item.eq(Cat(burst.address[:_ADDRESS], burst.length)),
            owed.take.eq(answers & (place == length)),
            word.eq(address + (place << 1)),
            Assert(~owed.put | (burst.address[:1] == 0)),
        ]
        with m.If(mine):
            m.d.comb += [
                bus.beat.valid.eq(self.answers & (owed.count != 0)),
                bus.beat.payload.data[:_WIDTH].eq(word),
                bus.beat.payload.data[_WIDTH:].eq((word + 1)[:_ADDRESS]),
                bus.beat.payload.error.eq(word[1:] == self.error_address),
            ]
        with m.If(answers):
            m.d.sync += place.eq(Mux(place == length, 0, place + 1))


class SharedWritesProperty(wiring.Component):
    """The data of each beat that a machine writes are its address, and its strobe depends on the
    address: each word on the bus has the beats of the burst that was announced with it, and no
    other bytes.

    A burst is announced on the bus only if the machine has sent all of its beats. Each response
    reaches its machine, in order. Memory may stall everything, and respond to the bursts of
    different machines in any order; machines may stall beats and responses.
    """

    def __init__(self, *modules: Any) -> None:
        self._shared = modules[-1].SharedWrites(_MACHINES, _WIDTH, _BUS_WIDTH, _DEPTH)
        super().__init__(
            {
                **_REQUESTS,
                "sends": In(_MACHINES),
                "accepts": In(_MACHINES),
                "bus_takes": In(1),
                "word_takes": In(1),
                "answers": In(1),
                "answered": In(1),
                "error": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.shared = shared = self._shared
        bus = shared.bus
        m.d.comb += [
            bus.request.ready.eq(self.bus_takes),
            bus.beat.ready.eq(self.word_takes),
            bus.response.payload.id.eq(self.answered),
            bus.response.payload.response.error.eq(self.error),
        ]
        assert_stable(m, bus.request, "request")
        assert_stable(m, bus.beat, "beat")
        asked = [self._machine(m, number) for number in range(_MACHINES)]
        owner = self._words(m, asked)
        answered = Signal(_MACHINES)
        for number in range(_MACHINES):
            self._responses(m, number, owner)
            response = shared.machines[number].response
            with m.If(response.valid & response.ready):
                m.d.sync += answered[number].eq(1)
        assume_stable(m, bus.response, "response")
        m.d.comb += Cover(answered.all())
        return m

    def _machine(self, m: Module, number: int) -> List:
        """Bursts of a machine, and their beats; returns the bursts whose words are not all on the
        bus.
        """
        port = self._shared.machines[number]
        request, beat = port.request, port.beat
        burst = _ask(m, self, request, number)
        m.submodules[f"sending_{number}"] = sending = List(len(burst), _BURSTS + 3)
        m.submodules[f"asked_{number}"] = asked = List(len(burst), _BURSTS + 5)
        place, at = Signal(_LENGTH, name=f"place_{number}"), Signal(_ADDRESS, name=f"at_{number}")
        sent = beat.valid & beat.ready
        last = place == sending.items[0][_ADDRESS:]
        bus = self._shared.bus
        # Bursts that are sent and not announced on the bus.
        complete = Signal(4, name=f"complete_{number}")
        announced = bus.request.valid & (bus.request.payload.id == number)
        m.d.comb += [
            sending.put.eq(request.valid & request.ready),
            sending.item.eq(burst),
            sending.take.eq(sent & last),
            asked.put.eq(sending.put),
            asked.item.eq(burst),
            at.eq(sending.items[0][:_ADDRESS] + place),
            beat.valid.eq(self.sends[number] & (sending.count != 0)),
            beat.payload.data.eq(at),
            beat.payload.strobe.eq(_strobe(at)),
            beat.payload.last.eq(last),
            Assert(~announced | (complete != 0)),
        ]
        assume_stable(m, beat, f"beat_{number}")
        m.d.sync += complete.eq(complete + (sent & last) - (announced & bus.request.ready))
        with m.If(sent):
            m.d.sync += place.eq(Mux(last, 0, place + 1))
        return asked

    def _words(self, m: Module, asked: list[List]) -> Signal:
        """Words on the bus; returns, one-hot, the machine whose burst ends in this cycle."""
        bus = self._shared.bus
        burst = bus.request.payload.burst
        m.submodules.owners = owners = List(1 + _ADDRESS + 8, 2 * _BURSTS + 4)
        place, word = Signal(8, name="word_place"), Signal(_ADDRESS, name="word")
        owner, address = owners.items[0][0], owners.items[0][1 : 1 + _ADDRESS]
        length = owners.items[0][1 + _ADDRESS :]
        sent = bus.beat.valid & bus.beat.ready
        # Words may come before their announcement is accepted; memory takes them after it.
        m.d.comb += [
            Assume(~sent | (owners.count != 0)),
            owners.put.eq(bus.request.valid & bus.request.ready),
            owners.item.eq(Cat(bus.request.payload.id, burst.address[:_ADDRESS], burst.length)),
            owners.take.eq(sent & bus.beat.payload.last),
            word.eq(address + (place << 1)),
            Assert(~sent | (bus.beat.payload.last == (place == length))),
            Assert(burst.address[0] == 0),
        ]
        with m.If(sent):
            m.d.sync += place.eq(Mux(bus.beat.payload.last, 0, place + 1))
        for number, bursts in enumerate(asked):
            mine = sent & (owner == number)
            first = bursts.items[0][:_ADDRESS]
            more = bursts.items[0][_ADDRESS:]
            m.d.comb += bursts.take.eq(mine & bus.beat.payload.last)
            m.d.comb += Assert(~mine | (bursts.count != 0))
            for lane in range(2):
                at = Signal(_ADDRESS, name=f"lane_{number}_{lane}")
                within, distance = Signal(name=f"within_{number}_{lane}"), Signal(_ADDRESS)
                m.d.comb += [
                    at.eq(word + lane),
                    distance.eq(at - first),
                    within.eq(distance <= more),
                    Assert(~mine | (bus.beat.payload.strobe[lane] == (within & _strobe(at)))),
                    Assert(~(mine & within) | (bus.beat.payload.data.word_select(lane, 8) == at)),
                ]
        return Mux(owners.take, Cat(owner == number for number in range(_MACHINES)), 0)

    def _responses(self, m: Module, number: int, ends: Value) -> None:
        """Bursts that memory has to respond to, and the responses on their way."""
        bus, response = self._shared.bus.response, self._shared.machines[number].response
        unanswered = Signal(4, name=f"unanswered_{number}")
        answers = bus.valid & bus.ready & (self.answered == number)
        m.submodules[f"responses_{number}"] = responses = List(1, 4)
        m.d.sync += unanswered.eq(unanswered + ends[number] - answers)
        with m.If(self.answered == number):
            m.d.comb += bus.valid.eq(self.answers & (unanswered != 0))
        m.d.comb += [
            response.ready.eq(self.accepts[number]),
            responses.put.eq(answers),
            responses.item.eq(self.error),
            responses.take.eq(response.valid & response.ready),
            Assert(~response.valid | (responses.count != 0)),
            Assert(~response.valid | (response.payload.error == responses.items[0])),
        ]


def _ask(m: Module, inputs: Any, request: Any, number: int) -> Value:
    """Drive the ``request`` stream of machine ``number`` from ``inputs``; assume bursts of at most
    three beats, stable until accepted. Returns address and length.
    """
    address, length = inputs.address[number], inputs.length[number]
    m.d.comb += [
        request.valid.eq(inputs.valid[number]),
        request.payload.address.eq(address),
        request.payload.length.eq(length),
        Assume(length < 3),
    ]
    assume_stable(m, request, f"request_{number}")
    return Cat(address, length)


def _strobe(address: Value) -> Value:
    return ~address[1]


PROOFS = (
    Proof(
        name="round robin",
        modules=(round_robin,),
        specify=lambda module: TurnsProperty(module, 3),
        mode="bmc",
        depth=10,
        bugs=(
            ("m.d.sync += latest.eq(self.chosen)", "m.d.sync += latest.eq(0)"),
            ("reversed(range(1, self._count + 1))", "range(1, self._count + 1)"),
            ("range(1, self._count + 1)", "range(1, self._count)"),
        ),
    ),
    Proof(
        name="shared reads",
        modules=(widths, reads),
        specify=SharedReadsProperty,
        mode="bmc",
        depth=9,
        bugs=(
            ("fits.eq(bursts.i.ready & (room > length))", "fits.eq(bursts.i.ready)"),
            (
                "leaves.eq(taken & (beat.payload.last | place.all()))",
                "leaves.eq(taken & place.all())",
            ),
            ("place.eq(burst.first + count)", "place.eq(count)"),
            ("(first + request.length) >> log", "request.length >> log"),
            ("& (bus.beat.payload.id == number)", ""),
        ),
        smaller=_SMALLER,
    ),
    Proof(
        name="shared writes",
        modules=(widths, writes),
        specify=SharedWritesProperty,
        mode="bmc",
        depth=9,
        bugs=(
            ("Mux(packs, 0, next_strobes)", "next_strobes"),
            ("Mux(begun, at, places.o.payload.first)", "at"),
            ("bursts.o.valid & (complete != 0)", "bursts.o.valid"),
            ("owners.i.payload.eq(turns.chosen)", "owners.i.payload.eq(0)"),
            ("free.eq(requests.i.ready & owners.i.ready)", "free.eq(owners.i.ready)"),
            ("responses.o.valid & (responses.o.payload.id == number)", "responses.o.valid"),
        ),
        smaller=_SMALLER,
    ),
)
