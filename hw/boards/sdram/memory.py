"""SDRAM behind the machine's AXI4 port, shared with the host: `SdramMemory`."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from amaranth_vta.hw.boards.axi_slave import ReadBursts, WriteBursts, connect_bursts
from amaranth_vta.hw.boards.link import HostAccess, HostAccessSignature, word_of_beat
from amaranth_vta.hw.boards.protocol import WORD_BYTES
from amaranth_vta.hw.bus.axi import AXI4Signature
from amaranth_vta.hw.queues.queue import Queue

from .chip import SdramChip
from .controller import Access, SdramController
from .pins import SdramSignature

# Maximum read beats in flight or not yet accepted by the bus: twice as many as are transferred
# during the latency of the first.
_BEATS_AHEAD = 8


class SdramMemory(wiring.Component):
    """An AXI4 slave in SDRAM: one read burst and one write burst at a time.

    Beats from ``limit`` on are answered with a decode error and not written. While both a read
    burst and a write burst have beats, one burst completes before the other continues, since the
    bus turnaround takes time. The host has priority: it makes one access in hundreds of cycles.
    Raises `ValueError` as `SdramController` does.

    Timing: that of `SdramController`, with a queue of accesses; one 64-bit beat in 4 cycles. A
    write is answered before it is made, and later reads return its data.

    Ports
    -----
    rst : holds the controller in reset before the chip's power-up
    axi : incrementing bursts of the full width
    host : accesses of 32 bits; an error beyond the memory
    limit : byte address, a multiple of 64
    pins : the chip
    """

    def __init__(self, chip: SdramChip, clock_hz: int, bus: AXI4Signature) -> None:
        self._bytes = bus.data_width // 8
        self._size = chip.bytes
        self._controller = SdramController(chip, clock_hz, bus.data_width)
        self._access = Access(chip, bus.data_width)
        self._reads = ReadBursts(chip.bytes, bus, _BEATS_AHEAD)
        self._writes = WriteBursts(chip.bytes, bus)
        super().__init__(
            {
                "rst": In(1),
                "axi": In(bus),
                "host": In(HostAccessSignature()),
                "limit": In(range(chip.bytes + 1)),
                "pins": Out(SdramSignature(chip)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.controller = controller = self._controller
        m.submodules.accesses = accesses = Queue(self._access, 2)
        m.submodules.reads, m.submodules.writes = reads, writes = self._reads, self._writes
        connect(m, accesses.o, controller.i)
        connect(m, controller.pins, flipped(self.pins))
        connect_bursts(m, self.axi, reads, writes)
        # The machine's reads whose data have not arrived.
        in_flight = Signal(range(_BEATS_AHEAD + 1))
        m.d.sync += in_flight.eq(in_flight + (reads.o.valid & reads.o.ready) - reads.data.valid)
        m.d.comb += [
            controller.rst.eq(self.rst),
            reads.limit.eq(self.limit),
            writes.limit.eq(self.limit),
            reads.data.valid.eq(controller.read.valid & (in_flight != 0)),
            reads.data.payload.eq(controller.read.payload),
        ]
        self._serve_host(m, accesses.i, in_flight)
        self._serve_bursts(m, accesses.i)
        return m

    def _serve_host(self, m: Module, access: Any, in_flight: Signal) -> None:
        """Hold the host's request until it can be offered as an ``access``.

        A host read waits until the machine has no reads ``in_flight``, and blocks new ones.
        """
        host, request = self.host, Signal(HostAccess)
        place = word_of_beat(request, self._bytes)
        self._host_offers, self._host_reads = Signal(), Signal()
        self._host_access = wanted = Signal(self._access)
        m.d.comb += [
            wanted.beat.eq(place.beat),
            wanted.write.eq(request.write),
            wanted.data.eq(place.data),
            wanted.strobe.eq(place.strobe),
        ]
        m.d.sync += host.done.eq(0)
        with m.FSM():
            with m.State("idle"):
                m.d.comb += host.request.ready.eq(1)
                m.d.sync += request.eq(host.request.payload)
                with m.If(host.request.valid):
                    m.next = "judge"
            with m.State("judge"):
                m.d.sync += host.error.eq(0)
                m.next = "offer"
                with m.If(request.address >= self._size):
                    m.d.sync += [host.error.eq(1), host.done.eq(1)]
                    m.next = "idle"
            with m.State("offer"):
                m.d.comb += [
                    self._host_reads.eq(~request.write),
                    self._host_offers.eq(request.write | (in_flight == 0)),
                ]
                with m.If(self._host_offers & access.ready):
                    m.d.sync += host.done.eq(request.write)
                    m.next = "read"
                    with m.If(request.write):
                        m.next = "idle"
            with m.State("read"):
                m.d.comb += self._host_reads.eq(1)
                m.d.sync += host.data.eq(
                    self._controller.read.payload.word_select(place.word, 8 * WORD_BYTES)
                )
                with m.If(self._controller.read.valid):
                    m.d.sync += host.done.eq(1)
                    m.next = "idle"

    def _serve_bursts(self, m: Module, access: Any) -> None:
        """Select the next ``access``."""
        read, write = self._reads.o, self._writes.o
        has_read, chooses_write = Signal(), Signal()
        # If both kinds of beats are waiting: whether a write burst continues or is next.
        prefers_write = Signal()
        m.d.comb += [
            has_read.eq(read.valid & ~self._host_reads),
            chooses_write.eq(write.valid & (prefers_write | ~has_read)),
            access.valid.eq(self._host_offers | has_read | write.valid),
        ]
        with m.If(self._host_offers):
            m.d.comb += access.payload.eq(self._host_access)
        with m.Elif(chooses_write):
            m.d.comb += [
                write.ready.eq(access.ready),
                access.payload.beat.eq(write.payload.beat),
                access.payload.write.eq(1),
                access.payload.data.eq(write.payload.data),
                access.payload.strobe.eq(write.payload.strobe),
            ]
            with m.If(access.ready):
                m.d.sync += prefers_write.eq(~write.payload.last)
        with m.Elif(has_read):
            m.d.comb += [read.ready.eq(access.ready), access.payload.beat.eq(read.payload.beat)]
            with m.If(access.ready):
                m.d.sync += prefers_write.eq(read.payload.last)
