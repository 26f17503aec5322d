"""Memory on the chip, behind the machine's AXI4 port, which the host reads and writes too."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In

from amaranth_vta.hw.bus.axi import AXI4Signature, Response
from amaranth_vta.hw.fabric.stream import Queue

from .link import HostAccessSignature
from .protocol import WORD_BYTES

# The most read beats in flight or waiting to be taken.
_BEATS_AHEAD = 4
_PAGE_BYTES = 4096


class OnChipMemory(wiring.Component):
    """An AXI4 slave in block RAM: one read burst and one write burst at a time.

    Beats from ``limit`` on are answered with a decode error. The host has priority: it makes one
    access in hundreds of cycles. Raises `ValueError` if ``size``, in bytes, is not a multiple of
    4096.

    Timing: the first beat of a read comes 3 cycles after its address is taken, then one per cycle;
    a write takes a beat per cycle.

    Ports
    -----
    axi : incrementing bursts of the full width
    host : accesses of 32 bits; an error beyond the memory
    limit : byte address, a multiple of 64
    """

    def __init__(self, size: int, bus: AXI4Signature) -> None:
        if size % _PAGE_BYTES:
            raise ValueError(f"{size} bytes of memory are not a multiple of {_PAGE_BYTES}")
        self._bytes = bus.data_width // 8
        self._depth = size // self._bytes
        self._bus = bus
        super().__init__(
            {
                "axi": In(bus),
                "host": In(HostAccessSignature()),
                "limit": In(range(size + 1)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.storage = storage = Memory(
            shape=unsigned(8 * self._bytes), depth=self._depth, init=[]
        )
        self._read = storage.read_port()
        self._write = storage.write_port(granularity=8)
        # The host's accesses stall those of the machine for a cycle.
        self._host_reads, self._host_writes = Signal(), Signal()
        self._serve_reads(m)
        self._serve_writes(m)
        self._serve_host(m)
        return m

    def _beat(self, name: str) -> Signal:
        """Index of a beat in the memory, one bit wider so that it may pass the end."""
        return Signal(range(2 * self._depth), name=name)

    def _start(self, address: Any) -> tuple[Any, Any]:
        """The index of the beat at ``address``, and whether it is too large for `_beat`."""
        number = address[(self._bytes - 1).bit_length() :]
        width = len(self._beat("any"))
        return number[:width], number[width:].any()

    def _inside(self, beat: Signal) -> Any:
        return beat < self.limit[(self._bytes - 1).bit_length() :]

    def _serve_reads(self, m: Module) -> None:
        axi = self.axi
        beats = data.StructLayout({"data": 8 * self._bytes, "resp": Response, "last": 1})
        m.submodules.beats = beat_queue = Queue(beats, _BEATS_AHEAD)
        beat, left, far = self._beat("read_beat"), Signal(9), Signal()
        # How many more beats may be issued before one is taken.
        room = Signal(range(_BEATS_AHEAD + 1), init=_BEATS_AHEAD)
        issued, came, taken = Signal(), Signal(), Signal()
        first, beyond = self._start(axi.araddr)
        error, last = Signal(), Signal()
        m.d.comb += [
            axi.arready.eq(left == 0),
            issued.eq((left != 0) & (room != 0) & ~self._host_reads),
            taken.eq(axi.rvalid & axi.rready),
            self._read.addr.eq(beat),
        ]
        m.d.sync += [
            came.eq(issued),
            error.eq(far | ~self._inside(beat)),
            last.eq(left == 1),
            room.eq(room - issued + taken),
        ]
        with m.If(axi.arvalid & axi.arready):
            m.d.sync += [beat.eq(first), far.eq(beyond), left.eq(axi.arlen + 1)]
        with m.If(issued):
            m.d.sync += [beat.eq(beat + 1), left.eq(left - 1)]
        out = beat_queue.o.payload
        m.d.comb += [
            beat_queue.i.payload.data.eq(self._read.data),
            beat_queue.i.payload.resp.eq(Mux(error, Response.DECERR, Response.OKAY)),
            beat_queue.i.payload.last.eq(last),
            beat_queue.i.valid.eq(came),
            axi.rvalid.eq(beat_queue.o.valid),
            axi.rdata.eq(out.data),
            axi.rresp.eq(out.resp),
            axi.rlast.eq(out.last),
            axi.rid.eq(0),
            beat_queue.o.ready.eq(axi.rready),
        ]

    def _serve_writes(self, m: Module) -> None:
        axi = self.axi
        beat, far, busy, error = self._beat("write_beat"), Signal(), Signal(), Signal()
        taken, good = Signal(), Signal()
        first, beyond = self._start(axi.awaddr)
        m.d.comb += [
            axi.awready.eq(~busy & ~axi.bvalid),
            axi.wready.eq(busy & ~self._host_writes),
            taken.eq(axi.wvalid & axi.wready),
            good.eq(self._inside(beat) & ~far),
            self._write.addr.eq(beat),
            self._write.data.eq(axi.wdata),
            self._write.en.eq(Mux(taken & good, axi.wstrb, 0)),
            axi.bid.eq(0),
            axi.bresp.eq(Mux(error, Response.DECERR, Response.OKAY)),
        ]
        with m.If(axi.awvalid & axi.awready):
            m.d.sync += [beat.eq(first), far.eq(beyond), busy.eq(1), error.eq(0)]
        with m.If(taken):
            m.d.sync += [beat.eq(beat + 1), error.eq(error | ~good)]
            with m.If(axi.wlast):
                m.d.sync += [busy.eq(0), axi.bvalid.eq(1)]
        with m.If(axi.bvalid & axi.bready):
            m.d.sync += axi.bvalid.eq(0)

    def _serve_host(self, m: Module) -> None:
        host, words = self.host, self._bytes // WORD_BYTES
        request = host.request.payload
        part = request.address[2 : 2 + (words - 1).bit_length()]
        number, beyond = self._start(request.address)
        part_read, pending = Signal.like(part), Signal()
        m.d.comb += [
            host.request.ready.eq(1),
            self._host_reads.eq(host.request.valid & ~request.write),
            self._host_writes.eq(host.request.valid & request.write),
            host.done.eq(pending),
            host.data.eq(self._read.data.word_select(part_read, 8 * WORD_BYTES)),
        ]
        m.d.sync += [
            pending.eq(host.request.valid),
            part_read.eq(part),
            host.error.eq(beyond | (number >= self._depth)),
        ]
        with m.If(self._host_reads):
            m.d.comb += self._read.addr.eq(number)
        with m.If(self._host_writes):
            lanes = Cat((part == at).replicate(WORD_BYTES) for at in range(words))
            m.d.comb += [
                self._write.addr.eq(number),
                self._write.data.eq(request.data.replicate(words)),
                self._write.en.eq(Mux(beyond | (number >= self._depth), 0, lanes)),
            ]
