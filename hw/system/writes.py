"""Writes of several machines on one memory bus: `WriteBuffer` and `SharedWrites`."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from amaranth_vta.hw.bus.axi import BurstRequest, WriteBeat, WriteSignature
from amaranth_vta.hw.queues.queue import Queue
from amaranth_vta.hw.timing import BURSTS_IN_FLIGHT

from .parameters import id_bits
from .round_robin import RoundRobin, grant_requests
from .streams import SharedRequest, SharedResponse, SharedWriteSignature
from .widths import Place, log_ratio, widened


class WriteBuffer(wiring.Component):
    """Packs the beats of one machine into words of the shared bus, and announces a burst when all
    of its words are buffered: a machine that stalls within a burst never blocks the bus.

    Timing: a beat is accepted per cycle. A burst is announced in the second cycle after its last
    beat, at the earliest.

    Parameters
    ----------
    width, bus_width : of the machine's and of the shared bus, in bits
    depth : words that the buffer holds, enough for any burst

    Ports
    -----
    machine : the writer
    bus : the same bursts in words of the shared bus; a beat is offered once it is packed
    """

    def __init__(self, width: int, bus_width: int, depth: int) -> None:
        self._width, self._bus_width, self._depth = width, bus_width, depth
        super().__init__(
            {"machine": In(WriteSignature(width)), "bus": Out(WriteSignature(bus_width))}
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        machine, bus = self.machine, self.bus
        log = log_ratio(self._width, self._bus_width)
        m.submodules.bursts = bursts = Queue(BurstRequest, BURSTS_IN_FLIGHT)
        m.submodules.places = places = Queue(Place(log), BURSTS_IN_FLIGHT)
        shape = WriteBeat(self._bus_width)
        m.submodules.words = words = Queue(shape, self._depth, in_block_ram=True)
        connect(m, flipped(bus.response), flipped(machine.response))

        # Announcements.
        address, length, first = widened(machine.request.payload, self._width, self._bus_width)
        complete, completes, announces = Signal(range(BURSTS_IN_FLIGHT + 1)), Signal(), Signal()
        m.d.comb += [
            machine.request.ready.eq(bursts.i.ready & places.i.ready),
            bursts.i.payload.address.eq(address),
            bursts.i.payload.length.eq(length),
            bursts.i.valid.eq(machine.request.valid & places.i.ready),
            places.i.payload.first.eq(first),
            places.i.valid.eq(machine.request.valid & bursts.i.ready),
            bus.request.payload.eq(bursts.o.payload),
            bus.request.valid.eq(bursts.o.valid & (complete != 0)),
            announces.eq(bus.request.valid & bus.request.ready),
            bursts.o.ready.eq(announces),
        ]
        m.d.sync += complete.eq(complete + completes - announces)

        # Beats.
        beat, place, begun, at = machine.beat, Signal(log), Signal(), Signal(log)
        taken, packs = Signal(), Signal()
        packed = Signal(self._bus_width)
        strobes = Signal(self._bus_width // 8)
        next_packed, next_strobes = Signal.like(packed), Signal.like(strobes)
        m.d.comb += [
            place.eq(Mux(begun, at, places.o.payload.first)),
            beat.ready.eq(places.o.valid & words.i.ready),
            taken.eq(beat.valid & beat.ready),
            packs.eq(taken & (beat.payload.last | place.all())),
            completes.eq(taken & beat.payload.last),
            places.o.ready.eq(completes),
            next_packed.eq(packed),
            next_strobes.eq(strobes),
            next_packed.word_select(place, self._width).eq(beat.payload.data),
            next_strobes.word_select(place, self._width // 8).eq(beat.payload.strobe),
            words.i.payload.data.eq(next_packed),
            words.i.payload.strobe.eq(next_strobes),
            words.i.payload.last.eq(beat.payload.last),
            words.i.valid.eq(packs),
        ]
        with m.If(taken):
            m.d.sync += [
                packed.eq(next_packed),
                strobes.eq(Mux(packs, 0, next_strobes)),
                begun.eq(~beat.payload.last),
                at.eq(place + 1),
            ]
        connect(m, words.o, flipped(bus.beat))
        return m


class SharedWrites(wiring.Component):
    """Arbitrates the write side of a memory bus among machines, round-robin by bursts.

    The beats of a burst follow one another on ``bus`` without gaps, unless memory stalls them.

    Timing: an announcement, a beat and a response pass in the cycle after each is accepted. Every
    path from an input of ``bus`` to an output is registered.

    Parameters
    ----------
    machines : number of machines
    width, bus_width : of a machine's and of the shared bus, in bits
    depth : words in the buffer of each machine

    Ports
    -----
    machines : the writers
    bus : the memory
    """

    def __init__(self, machines: int, width: int, bus_width: int, depth: int) -> None:
        self._sizes = width, bus_width, depth
        self._bus_width = bus_width
        self._id_bits = id_bits(machines)
        super().__init__(
            {
                "machines": In(WriteSignature(width)).array(machines),
                "bus": Out(SharedWriteSignature(self._id_bits, bus_width)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        count, bus = len(self.machines), self.bus
        m.submodules.requests = requests = Queue(SharedRequest(self._id_bits), 2)
        m.submodules.beats = beats = Queue(WriteBeat(self._bus_width), 2)
        m.submodules.responses = responses = Queue(SharedResponse(self._id_bits), 2)
        # Machines of the bursts that were announced and have beats to come.
        m.submodules.owners = owners = Queue(range(count), BURSTS_IN_FLIGHT)
        connect(m, requests.o, flipped(bus.request))
        connect(m, beats.o, flipped(bus.beat))
        connect(m, flipped(bus.response), responses.i)
        m.submodules.turns = turns = RoundRobin(count)
        free = Signal()
        m.d.comb += [
            free.eq(requests.i.ready & owners.i.ready),
            owners.i.payload.eq(turns.chosen),
            owners.i.valid.eq(turns.granted),
            owners.o.ready.eq(beats.i.valid & beats.i.ready & beats.i.payload.last),
        ]
        buffers = []
        for number in range(count):
            m.submodules[f"buffer_{number}"] = buffer = WriteBuffer(*self._sizes)
            connect(m, flipped(self.machines[number]), buffer.machine)
            buffers.append(buffer)
            response = buffer.bus.response
            m.d.comb += [
                response.payload.eq(responses.o.payload.response),
                response.valid.eq(responses.o.valid & (responses.o.payload.id == number)),
            ]
        grant_requests(m, turns, [buffer.bus.request for buffer in buffers], requests.i, free)
        with m.Switch(owners.o.payload):
            for number, buffer in enumerate(buffers):
                with m.Case(number):
                    m.d.comb += [
                        beats.i.payload.eq(buffer.bus.beat.payload),
                        beats.i.valid.eq(buffer.bus.beat.valid & owners.o.valid),
                        buffer.bus.beat.ready.eq(beats.i.ready & owners.o.valid),
                    ]
        with m.Switch(responses.o.payload.id):
            for number, buffer in enumerate(buffers):
                with m.Case(number):
                    m.d.comb += responses.o.ready.eq(buffer.bus.response.ready)
        return m
