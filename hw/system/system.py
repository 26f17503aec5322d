"""Several machines on one memory bus: `System`."""

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Cat, Module, Mux, ResetInserter
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from amaranth_vta.hw.bus.attributes import DEFAULT_ATTRIBUTES, BusAttributes
from amaranth_vta.hw.bus.axi import AXI4LiteSignature, AXI4Signature, Response
from amaranth_vta.hw.bus.master import connect_requests, connect_transfers
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.registers import ADDRESS_WIDTH, WORD_BYTES
from amaranth_vta.hw.top import Top

from .parameters import SystemConfig
from .reads import SharedReads
from .registers import RegisterDecoder
from .writes import SharedWrites


class System(wiring.Component):
    """Complete machines that share only a memory: registers and programs are private. A fault or a
    stop of a machine does not affect the others. ``machine`` returns each of them: a `Top`, or an
    instance of its Verilog.

    Timing: as of `Top`; a burst read takes two cycles more from its request to its first beat, and
    a burst written reaches memory after its last beat was accepted.

    Ports
    -----
    m_axi : AXI4 master, as wide as the configuration says; the ID of a burst is the number of its
        machine, and memory may answer bursts with different IDs in any order
    s_axil : AXI4-Lite slave; the registers of machine k begin at byte k * 4096
    irq : high while the interrupt of at least one machine is
    rst : synchronous reset of all machines, an ordinary port as in `Top`
    """

    def __init__(
        self,
        config: SystemConfig,
        attributes: BusAttributes = DEFAULT_ATTRIBUTES,
        machine: Callable[[Config], Any] = Top,
    ) -> None:
        self._config = config
        self._attributes = attributes
        self._machine = machine
        address = ADDRESS_WIDTH + config.id_bits
        super().__init__(
            {
                "m_axi": Out(AXI4Signature(config.bus_bits, id_width=config.id_bits)),
                "s_axil": In(AXI4LiteSignature(8 * WORD_BYTES, address)),
                "irq": Out(1),
                "rst": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self._config
        own = 8 * config.config.bus_bytes
        sizes = config.machines, own, config.bus_bits, config.buffer_words
        decoder, reads = RegisterDecoder(config.machines), SharedReads(*sizes)
        writes = SharedWrites(*sizes)
        for name, part in (("decoder", decoder), ("reads", reads), ("writes", writes)):
            m.submodules[name] = ResetInserter(self.rst)(part)
        connect(m, flipped(self.s_axil), decoder.bus)
        machines = [self._machine(config.config) for _ in range(config.machines)]
        for number, machine in enumerate(machines):
            m.submodules[f"machine_{number}"] = machine
            m.d.comb += machine.rst.eq(self.rst)
            connect(m, decoder.machines[number], machine.s_axil)
            _connect_reads(m, machine.m_axi, reads.machines[number])
            _connect_writes(m, machine.m_axi, writes.machines[number])
        m.d.comb += self.irq.eq(Cat(machine.irq for machine in machines).any())
        self._connect_memory(m, reads.bus, writes.bus)
        return m

    def _connect_memory(self, m: Module, reads: Any, writes: Any) -> None:
        bus = self.m_axi
        for channel, request in (("ar", reads.request), ("aw", writes.request)):
            burst, machine = request.payload.burst, request.payload.id
            connect_requests(m, bus, channel, request, burst, self._attributes, id=machine)
        response = writes.response.payload
        owner = reads.beat.payload.id.eq(bus.rid)
        connect_transfers(m, bus, reads, writes, [owner], response.response.error)
        m.d.comb += response.id.eq(bus.bid)


def _connect_reads(m: Module, bus: Any, reads: Any) -> None:
    """Connect the read channels of a machine, which has one ID."""
    request, beat = reads.request, reads.beat
    m.d.comb += [
        request.payload.address.eq(bus.araddr),
        request.payload.length.eq(bus.arlen),
        request.valid.eq(bus.arvalid),
        bus.arready.eq(request.ready),
        bus.rid.eq(0),
        bus.rdata.eq(beat.payload.data),
        bus.rresp.eq(_response(beat.payload.error)),
        bus.rlast.eq(beat.payload.last),
        bus.rvalid.eq(beat.valid),
        beat.ready.eq(bus.rready),
    ]


def _connect_writes(m: Module, bus: Any, writes: Any) -> None:
    """Connect the write channels of a machine."""
    request, beat, response = writes.request, writes.beat, writes.response
    m.d.comb += [
        request.payload.address.eq(bus.awaddr),
        request.payload.length.eq(bus.awlen),
        request.valid.eq(bus.awvalid),
        bus.awready.eq(request.ready),
        beat.payload.data.eq(bus.wdata),
        beat.payload.strobe.eq(bus.wstrb),
        beat.payload.last.eq(bus.wlast),
        beat.valid.eq(bus.wvalid),
        bus.wready.eq(beat.ready),
        bus.bid.eq(0),
        bus.bresp.eq(_response(response.payload.error)),
        bus.bvalid.eq(response.valid),
        response.ready.eq(bus.bready),
    ]


def _response(error: Any) -> Any:
    return Mux(error, Response.SLVERR, Response.OKAY)
