"""AXI4 slave of a board's memory: expands bursts into beats."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.bus.axi import AXI4Signature, Response
from amaranth_vta.hw.queues.queue import Queue


class BeatRead(data.StructLayout):
    """A beat to read: its index in a memory of ``beats`` beats."""

    def __init__(self, beats: int) -> None:
        super().__init__({"beat": range(beats), "last": 1})


class BeatWrite(data.StructLayout):
    """A beat to write: its index in a memory of ``beats`` beats, the data, and byte strobes."""

    def __init__(self, beats: int, width: int) -> None:
        super().__init__({"beat": range(beats), "last": 1, "data": width, "strobe": width // 8})


class _Bursts(wiring.Component):
    """Common part of the read and write channels: one burst at a time, with incrementing addresses.

    Beats from ``limit`` on are errors.

    Timing: the index of the first beat is valid in the cycle after its address is accepted, that of
    a later beat in the cycle after its predecessor.
    """

    def __init__(self, size: int, bus: AXI4Signature, channels: tuple[str, ...], **ports: Any):
        self._bytes = bus.data_width // 8
        self._size = size
        side = {name: member for name, member in bus.members.items() if name.startswith(channels)}
        super().__init__({"axi": In(wiring.Signature(side)), "limit": In(range(size + 1)), **ports})

    def _count(self, m: Module, taken: Any, address: Any, next_beat: Any) -> tuple[Any, Any]:
        """Index of the current beat of a burst, which starts at ``address`` when ``taken``, and
        whether the beat is an error.
        """
        number = address[(self._bytes - 1).bit_length() :]
        # One bit wider, so that it can exceed the end of the memory.
        beat, far = Signal(range(2 * self._size // self._bytes)), Signal()
        with m.If(taken):
            m.d.sync += [beat.eq(number), far.eq(number[len(beat) :].any())]
        with m.Elif(next_beat):
            m.d.sync += beat.eq(beat + 1)
        return beat, far | (beat >= self.limit[(self._bytes - 1).bit_length() :])


class ReadBursts(_Bursts):
    """The read channels. Data return in order, with any latency.

    Timing: the first beat is requested in the cycle after its address is accepted, then one per
    cycle; data appear on the bus one cycle after they return.

    Parameters
    ----------
    size : of the memory, in bytes
    bus : of the AXI4 port
    ahead : maximum number of beats requested and not accepted by the bus

    Ports
    -----
    axi : the read channels
    limit : byte address, a multiple of 64
    o : beats to read, including those beyond the limit
    data : the data read
    """

    def __init__(self, size: int, bus: AXI4Signature, ahead: int) -> None:
        self._width = bus.data_width
        self._ahead = ahead
        beats = size // (bus.data_width // 8)
        super().__init__(
            size,
            bus,
            ("ar", "r"),
            o=Out(stream.Signature(BeatRead(beats))),
            data=In(stream.Signature(bus.data_width, always_ready=True)),
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        axi, o = self.axi, self.o
        flags = data.StructLayout({"error": 1, "last": 1})
        beat_layout = data.StructLayout({"data": self._width, **flags.members})
        m.submodules.flags = asked = Queue(flags, self._ahead)
        m.submodules.beats = beats = Queue(beat_layout, self._ahead)
        left = Signal(9)
        # Credits: number of further beats that may be requested.
        room = Signal(range(self._ahead + 1), init=self._ahead)
        goes, taken = Signal(), Signal()
        start = axi.arvalid & axi.arready
        beat, error = self._count(m, start, axi.araddr, goes)
        m.d.comb += [
            axi.arready.eq(left == 0),
            o.valid.eq((left != 0) & (room != 0)),
            o.payload.beat.eq(beat),
            o.payload.last.eq(left == 1),
            goes.eq(o.valid & o.ready),
            asked.i.valid.eq(goes),
            asked.i.payload.last.eq(o.payload.last),
            asked.i.payload.error.eq(error),
            asked.o.ready.eq(self.data.valid),
            beats.i.valid.eq(self.data.valid),
            beats.i.payload.data.eq(self.data.payload),
            beats.i.payload.error.eq(asked.o.payload.error),
            beats.i.payload.last.eq(asked.o.payload.last),
            axi.rvalid.eq(beats.o.valid),
            axi.rdata.eq(beats.o.payload.data),
            axi.rresp.eq(Mux(beats.o.payload.error, Response.DECERR, Response.OKAY)),
            axi.rlast.eq(beats.o.payload.last),
            axi.rid.eq(0),
            beats.o.ready.eq(axi.rready),
            taken.eq(axi.rvalid & axi.rready),
        ]
        m.d.sync += room.eq(room - goes + taken)
        with m.If(start):
            m.d.sync += left.eq(axi.arlen + 1)
        with m.Elif(goes):
            m.d.sync += left.eq(left - 1)
        return m


class WriteBursts(_Bursts):
    """The write channels. A burst is answered after its last beat is accepted.

    Timing: a beat is offered, and accepted, in the cycle in which it is on the bus.

    Parameters
    ----------
    size : of the memory, in bytes
    bus : of the AXI4 port

    Ports
    -----
    axi : the write channels
    limit : byte address, a multiple of 64
    o : beats to write, without strobes beyond the limit
    """

    def __init__(self, size: int, bus: AXI4Signature) -> None:
        beats = size // (bus.data_width // 8)
        layout = BeatWrite(beats, bus.data_width)
        super().__init__(size, bus, ("aw", "w", "b"), o=Out(stream.Signature(layout)))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        axi, o = self.axi, self.o
        busy, failed, taken = Signal(), Signal(), Signal()
        start = axi.awvalid & axi.awready
        beat, error = self._count(m, start, axi.awaddr, taken)
        m.d.comb += [
            axi.awready.eq(~busy & ~axi.bvalid),
            axi.wready.eq(busy & o.ready),
            o.valid.eq(busy & axi.wvalid),
            o.payload.beat.eq(beat),
            o.payload.last.eq(axi.wlast),
            o.payload.data.eq(axi.wdata),
            o.payload.strobe.eq(Mux(error, 0, axi.wstrb)),
            taken.eq(o.valid & o.ready),
            axi.bid.eq(0),
            axi.bresp.eq(Mux(failed, Response.DECERR, Response.OKAY)),
        ]
        with m.If(start):
            m.d.sync += [busy.eq(1), failed.eq(0)]
        with m.If(taken):
            m.d.sync += failed.eq(failed | error)
            with m.If(axi.wlast):
                m.d.sync += [busy.eq(0), axi.bvalid.eq(1)]
        with m.If(axi.bvalid & axi.bready):
            m.d.sync += axi.bvalid.eq(0)
        return m


def connect_bursts(m: Module, axi: Any, *sides: _Bursts) -> None:
    """Connect the slave side of an AXI4 port to the channels of ``sides``."""
    for side in sides:
        for name, member in side.axi.signature.members.items():
            outer, inner = getattr(axi, name), getattr(side.axi, name)
            m.d.comb += inner.eq(outer) if member.flow is In else outer.eq(inner)
