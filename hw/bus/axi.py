"""Bus signatures, and the arbiter of the memory's read side.

Inside the machine memory is accessed by plain streams of bursts, beats and responses;
`amaranth_vta.hw.top` adapts them to AXI4. All bursts are incrementing, of the full bus width, at
most 256 beats, and never cross a 4 KiB boundary.
"""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from amaranth_vta.hw.interfaces import ADDRESS_WIDTH
from amaranth_vta.hw.queues.queue import Queue
from amaranth_vta.hw.timing import BEATS_AHEAD, BURSTS_IN_FLIGHT


class AXI4Signature(wiring.Signature):
    """AXI4 master port (AMBA AXI protocol specification, issue E, chapter A2), without the optional
    region and user signals.

    Attributes
    ----------
    data_width, address_width, id_width : in bits
    """

    def __init__(self, data_width: int, address_width: int = ADDRESS_WIDTH, id_width: int = 1):
        self.data_width = data_width
        self.address_width = address_width
        self.id_width = id_width
        request = {
            "id": id_width,
            "addr": address_width,
            "len": 8,
            "size": 3,
            "burst": 2,
            "lock": 1,
            "cache": 4,
            "prot": 3,
            "qos": 4,
        }
        write = {"data": data_width, "strb": data_width // 8, "last": 1}
        read = {"id": id_width, "data": data_width, "resp": 2, "last": 1}
        super().__init__(
            {
                **_channel(Out, "aw", request),
                **_channel(Out, "w", write),
                **_channel(In, "b", {"id": id_width, "resp": 2}),
                **_channel(Out, "ar", request),
                **_channel(In, "r", read),
            }
        )


class AXI4LiteSignature(wiring.Signature):
    """AXI4-Lite master port (the same specification, chapter B1).

    Attributes
    ----------
    data_width, address_width : in bits
    """

    def __init__(self, data_width: int = 32, address_width: int = 12) -> None:
        self.data_width = data_width
        self.address_width = address_width
        request = {"addr": address_width, "prot": 3}
        super().__init__(
            {
                **_channel(Out, "aw", request),
                **_channel(Out, "w", {"data": data_width, "strb": data_width // 8}),
                **_channel(In, "b", {"resp": 2}),
                **_channel(Out, "ar", request),
                **_channel(In, "r", {"data": data_width, "resp": 2}),
            }
        )


def _channel(flow: Any, name: str, payload: dict[str, int]) -> dict[str, wiring.Member]:
    """Wires of one channel whose payload flows in direction ``flow``."""
    members = {f"{name}{wire}": flow(width) for wire, width in payload.items()}
    members[f"{name}valid"] = flow(1)
    members[f"{name}ready"] = Out(1) if flow is In else In(1)
    return members


class Response(enum.Enum, shape=2):
    """AXI responses; the last two are errors."""

    OKAY = 0
    EXOKAY = 1
    SLVERR = 2
    DECERR = 3


class BurstRequest(data.Struct):
    """A burst: byte address of its first beat, aligned to the bus, and number of further beats."""

    address: ADDRESS_WIDTH
    length: 8


class ReadBeat(data.StructLayout):
    """One beat of a read burst; ``error``: its data are invalid."""

    def __init__(self, data_width: int) -> None:
        super().__init__({"data": unsigned(data_width), "error": 1, "last": 1})


class WriteBeat(data.StructLayout):
    """One beat of a write burst; ``strobe`` has one bit per byte."""

    def __init__(self, data_width: int) -> None:
        super().__init__(
            {"data": unsigned(data_width), "strobe": unsigned(data_width // 8), "last": 1}
        )


class WriteResponse(data.Struct):
    """Memory's response to one write burst."""

    error: 1


class ReadSignature(wiring.Signature):
    """A reader of memory: burst requests, and their beats in request order.

    The reader must accept beats without waiting for anything that needs the bus.
    """

    def __init__(self, data_width: int) -> None:
        self.data_width = data_width
        super().__init__(
            {
                "request": Out(stream.Signature(BurstRequest)),
                "beat": In(stream.Signature(ReadBeat(data_width))),
            }
        )


class WriteSignature(wiring.Signature):
    """A writer of memory: burst announcements, their beats, and one response per burst, in order.

    A burst is announced before or with its first beat.
    """

    def __init__(self, data_width: int) -> None:
        self.data_width = data_width
        super().__init__(
            {
                "request": Out(stream.Signature(BurstRequest)),
                "beat": Out(stream.Signature(WriteBeat(data_width))),
                "response": In(stream.Signature(WriteResponse)),
            }
        )


class Reader(enum.Enum, shape=2):
    """The module that requested a burst."""

    FETCH = 0
    LOAD = 1
    COMPUTE = 2


class ReadArbiter(wiring.Component):
    """Arbitrates the memory's read side among fetch, load and compute.

    Fetch has priority, but not twice in a row while another reader waits; load and compute
    alternate (round-robin), also when fetch intervenes. So fetch waits for at most one burst of
    another reader, and load and compute for three. No burst starts while `BEATS_AHEAD` beats are
    outstanding: enough to hide memory latency, few enough for instructions to arrive in time.

    Timing: a request appears at ``bus`` in the cycle after it is accepted, a beat at its reader in
    the cycle after it arrives; throughput is one of each per cycle. Every path from an input of
    ``bus`` to an output is registered.

    Ports
    -----
    fetch, load, compute : the readers
    bus : the memory
    stop : no burst is started, and the beats of those in flight are dropped
    idle : no burst is in flight
    """

    def __init__(self, data_width: int) -> None:
        self._data_width = data_width
        reader = ReadSignature(data_width)
        super().__init__(
            {
                "fetch": In(reader),
                "load": In(reader),
                "compute": In(reader),
                "bus": Out(reader),
                "stop": In(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.owners = owners = Queue(
            data.StructLayout({"reader": Reader}), BURSTS_IN_FLIGHT, registered=True
        )
        m.submodules.requests = requests = Queue(BurstRequest, 2)
        m.submodules.beats = beats = Queue(ReadBeat(self._data_width), 2)
        connect(m, requests.o, flipped(self.bus.request))
        connect(m, flipped(self.bus.beat), beats.i)
        readers = {
            Reader.FETCH: self.fetch,
            Reader.LOAD: self.load,
            Reader.COMPUTE: self.compute,
        }

        # Requests.
        chosen = Signal(Reader)
        # Round-robin state: fetch had the latest burst; load had the latest of load and compute.
        after_fetch, after_load = Signal(), Signal()
        other = Mux(
            self.load.request.valid & (~after_load | ~self.compute.request.valid),
            Reader.LOAD,
            Reader.COMPUTE,
        )
        others = self.load.request.valid | self.compute.request.valid
        # ``beats_ahead`` lacks a burst granted in the previous cycle, whose length + 1 is added
        # here, since it arrives late. The lowest bits of both operands make the carry-in.
        beats_ahead, total = Signal(range(BEATS_AHEAD + 256)), Signal(range(BEATS_AHEAD + 512))
        granted_before, length_before = Signal(), Signal(8)
        open_ = Signal()
        granted = Signal()
        m.d.comb += [
            chosen.eq(
                Mux(
                    self.fetch.request.valid & (~after_fetch | ~others),
                    Reader.FETCH,
                    other,
                )
            ),
            total.eq((Cat(granted_before, beats_ahead) + Cat(granted_before, length_before))[1:]),
            open_.eq(requests.i.ready & owners.i.ready & (total < BEATS_AHEAD) & ~self.stop),
            granted.eq(open_ & (self.fetch.request.valid | others)),
            owners.i.payload.reader.eq(chosen),
            owners.i.valid.eq(granted),
            requests.i.valid.eq(granted),
        ]
        request = requests.i.payload
        with m.Switch(chosen):
            for name, reader in readers.items():
                with m.Case(name):
                    m.d.comb += request.eq(reader.request.payload)
                    m.d.comb += reader.request.ready.eq(open_)
        with m.If(granted):
            m.d.sync += after_fetch.eq(chosen == Reader.FETCH)
            with m.If(chosen != Reader.FETCH):
                m.d.sync += after_load.eq(chosen == Reader.LOAD)

        # Beats.
        taken = Signal()
        m.d.comb += [
            taken.eq(beats.o.valid & beats.o.ready),
            owners.o.ready.eq(taken & beats.o.payload.last),
            self.idle.eq(~owners.o.valid),
        ]
        for name, reader in readers.items():
            mine = owners.o.payload.reader == name
            m.d.comb += [
                reader.beat.payload.eq(beats.o.payload),
                reader.beat.valid.eq(beats.o.valid & mine & ~self.stop),
            ]
            with m.If(mine):
                m.d.comb += beats.o.ready.eq(reader.beat.ready)
        with m.If(self.stop):
            m.d.comb += beats.o.ready.eq(1)
        m.d.sync += [
            granted_before.eq(granted),
            length_before.eq(Mux(granted, request.length, 0)),
            beats_ahead.eq(total - taken.as_unsigned()),
        ]
        return m
