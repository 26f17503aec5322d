"""Reads of several machines on one memory bus: `ReadBuffer` and `SharedReads`."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from amaranth_vta.hw.bus.axi import BurstRequest, ReadSignature
from amaranth_vta.hw.queues.queue import Queue
from amaranth_vta.hw.timing import BURSTS_IN_FLIGHT

from .parameters import id_bits
from .round_robin import RoundRobin, grant_requests
from .streams import SharedReadSignature, SharedRequest
from .widths import Place, log_ratio, widened


class ReadBuffer(wiring.Component):
    """Requests the bursts of one machine in words of the shared bus, buffers these words, and
    splits them into the machine's beats.

    A burst is requested only if the buffer has room for all of its words, so words are accepted
    without backpressure: a machine that stalls never delays the words of other machines.

    Timing: a request passes in the same cycle. A word is split from the cycle after its arrival on,
    one beat per cycle.

    Parameters
    ----------
    width, bus_width : of the machine's and of the shared bus, in bits
    depth : words that the buffer holds, enough for any burst

    Ports
    -----
    machine : the reader
    request : its bursts, in words of the shared bus
    word : the next word of these bursts, if ``arrives``
    """

    def __init__(self, width: int, bus_width: int, depth: int) -> None:
        self._width, self._bus_width, self._depth = width, bus_width, depth
        super().__init__(
            {
                "machine": In(ReadSignature(width)),
                "request": Out(stream.Signature(BurstRequest)),
                "word": In(data.StructLayout({"data": unsigned(bus_width), "error": 1})),
                "arrives": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        machine, request = self.machine, self.request
        log = log_ratio(self._width, self._bus_width)
        m.submodules.words = words = Queue(self.word.shape(), self._depth, in_block_ram=True)
        m.submodules.bursts = bursts = Queue(Place(log), BURSTS_IN_FLIGHT)

        # Requests.
        address, length, first = widened(machine.request.payload, self._width, self._bus_width)
        # Words that are neither requested nor buffered.
        room, fits = Signal(range(self._depth + 1), init=self._depth), Signal()
        asks, leaves = Signal(), Signal()
        m.d.comb += [
            fits.eq(bursts.i.ready & (room > length)),
            request.payload.address.eq(address),
            request.payload.length.eq(length),
            request.valid.eq(machine.request.valid & fits),
            machine.request.ready.eq(request.ready & fits),
            asks.eq(request.valid & request.ready),
            bursts.i.payload.first.eq(first),
            bursts.i.payload.length.eq(machine.request.payload.length),
            bursts.i.valid.eq(asks),
        ]
        m.d.sync += room.eq(room + leaves - Mux(asks, length + 1, 0))

        # Beats.
        burst, beat, count = bursts.o.payload, machine.beat, Signal(8)
        place, taken = Signal(log), Signal()
        m.d.comb += [
            words.i.payload.eq(self.word),
            words.i.valid.eq(self.arrives),
            place.eq(burst.first + count),
            beat.payload.data.eq(words.o.payload.data.word_select(place, self._width)),
            beat.payload.error.eq(words.o.payload.error),
            beat.payload.last.eq(count == burst.length),
            beat.valid.eq(words.o.valid & bursts.o.valid),
            taken.eq(beat.valid & beat.ready),
            leaves.eq(taken & (beat.payload.last | place.all())),
            words.o.ready.eq(leaves),
            bursts.o.ready.eq(taken & beat.payload.last),
        ]
        with m.If(taken):
            m.d.sync += count.eq(Mux(beat.payload.last, 0, count + 1))
        return m


class SharedReads(wiring.Component):
    """Arbitrates the read side of a memory bus among machines, round-robin by bursts.

    Timing: a request appears at ``bus`` in the cycle after it is accepted, a beat at its machine in
    the cycle after its word arrives. Words are accepted in every cycle. Every path from an input of
    ``bus`` to an output is registered.

    Parameters
    ----------
    machines : number of machines
    width, bus_width : of a machine's and of the shared bus, in bits
    depth : words in the buffer of each machine

    Ports
    -----
    machines : the readers
    bus : the memory
    """

    def __init__(self, machines: int, width: int, bus_width: int, depth: int) -> None:
        self._sizes = width, bus_width, depth
        self._id_bits = id_bits(machines)
        super().__init__(
            {
                "machines": In(ReadSignature(width)).array(machines),
                "bus": Out(SharedReadSignature(self._id_bits, bus_width)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        count, bus = len(self.machines), self.bus
        m.submodules.requests = requests = Queue(SharedRequest(self._id_bits), 2)
        connect(m, requests.o, flipped(bus.request))
        m.submodules.turns = turns = RoundRobin(count)
        m.d.comb += bus.beat.ready.eq(1)
        buffers = []
        for number in range(count):
            m.submodules[f"buffer_{number}"] = buffer = ReadBuffer(*self._sizes)
            connect(m, flipped(self.machines[number]), buffer.machine)
            buffers.append(buffer)
            m.d.comb += [
                buffer.word.data.eq(bus.beat.payload.data),
                buffer.word.error.eq(bus.beat.payload.error),
                buffer.arrives.eq(bus.beat.valid & (bus.beat.payload.id == number)),
            ]
        streams = [buffer.request for buffer in buffers]
        grant_requests(m, turns, streams, requests.i, requests.i.ready)
        return m
