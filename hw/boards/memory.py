"""On-chip memory behind the machine's AXI4 port, shared with the host."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In

from amaranth_vta.hw.bus.axi import AXI4Signature

from .axi_slave import ReadBursts, WriteBursts, connect_bursts
from .link import HostAccessSignature, word_of_beat
from .protocol import WORD_BYTES

# Maximum read beats in flight or not yet accepted by the bus.
_BEATS_AHEAD = 4
_PAGE_BYTES = 4096


class OnChipMemory(wiring.Component):
    """An AXI4 slave in block RAM: one read burst and one write burst at a time.

    Beats from ``limit`` on are answered with a decode error. The host has priority: it makes one
    access in hundreds of cycles. Raises `ValueError` if ``size``, in bytes, is not a multiple of
    4096.

    Timing: the first beat of a read appears 3 cycles after its address is accepted, then one per
    cycle; a write accepts one beat per cycle.

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
        self._reads = ReadBursts(size, bus, _BEATS_AHEAD)
        self._writes = WriteBursts(size, bus)
        super().__init__(
            {
                "axi": In(bus),
                "host": In(HostAccessSignature()),
                "limit": In(range(size + 1)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.reads, m.submodules.writes = reads, writes = self._reads, self._writes
        connect_bursts(m, self.axi, reads, writes)
        m.submodules.storage = storage = Memory(
            shape=unsigned(8 * self._bytes), depth=self._depth, init=[]
        )
        read, write = storage.read_port(), storage.write_port(granularity=8)
        # A host access stalls the machine's accesses for a cycle.
        host_reads, host_writes = Signal(), Signal()
        m.d.comb += [
            reads.limit.eq(self.limit),
            writes.limit.eq(self.limit),
            reads.o.ready.eq(~host_reads),
            reads.data.payload.eq(read.data),
            writes.o.ready.eq(~host_writes),
        ]
        m.d.sync += reads.data.valid.eq(reads.o.valid & reads.o.ready)

        host, request = self.host, self.host.request.payload
        place = word_of_beat(request, self._bytes)
        word_read, pending, inside = Signal.like(place.word), Signal(), place.beat < self._depth
        wanted = writes.o.payload
        m.d.comb += [
            host.request.ready.eq(1),
            host_reads.eq(host.request.valid & ~request.write),
            host_writes.eq(host.request.valid & request.write),
            read.addr.eq(Mux(host_reads, place.beat, reads.o.payload.beat)),
            write.addr.eq(Mux(host_writes, place.beat, wanted.beat)),
            write.data.eq(Mux(host_writes, place.data, wanted.data)),
            host.done.eq(pending),
            host.data.eq(read.data.word_select(word_read, 8 * WORD_BYTES)),
        ]
        with m.If(host_writes):
            m.d.comb += write.en.eq(Mux(inside, place.strobe, 0))
        with m.Elif(writes.o.valid):
            m.d.comb += write.en.eq(wanted.strobe)
        m.d.sync += [
            pending.eq(host.request.valid),
            word_read.eq(place.word),
            host.error.eq(~inside),
        ]
        return m
