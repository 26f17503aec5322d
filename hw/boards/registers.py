"""Targets of host accesses other than memory: registers of the machine and of the board."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.bus.axi import AXI4LiteSignature
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.registers import ADDRESS_WIDTH

from . import protocol
from .link import HostAccessSignature
from .processor.parameters import SoftProcessor
from .protocol import BoardRegister
from .sdram.chip import SdramChip

# Incomplete requests are dropped after this many bits of silence: 16 ms at 1 MBaud, which is longer
# than a USB adapter holds bytes back.
GAP_BITS = 16_384


@dataclass(frozen=True)
class Surroundings:
    """Environment of the machine on a board: bytes of memory, clock frequency in Hz, clock cycles
    per bit on the serial line, bits of silence after which an incomplete request is dropped, the
    memory chip, or None if memory is on the FPGA, and the processor, if there is one.
    """

    memory_bytes: int
    clock_hz: int
    divisor: int
    gap_bits: int = GAP_BITS
    sdram: SdramChip | None = None
    processor: SoftProcessor | None = None

    @property
    def has_flash(self) -> bool:
        """Whether the processor reads a flash memory."""
        return self.processor is not None and self.processor.has_flash


class RegisterAccess(wiring.Component):
    """Host accesses to the machine's registers, through its AXI4-Lite port.

    Timing: the bus's valid signals rise in the cycle after a request is accepted, and its response
    is forwarded in the cycle in which it arrives; one access at a time.

    Ports
    -----
    host : words of 32 bits
    bus : AXI4-Lite master
    """

    host: In(HostAccessSignature())
    bus: Out(AXI4LiteSignature(32, ADDRESS_WIDTH))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        host, bus = self.host, self.bus
        request = host.request.payload
        waiting = Signal()
        m.d.comb += host.request.ready.eq(~waiting)
        with m.If(host.request.valid & host.request.ready):
            m.d.sync += [
                waiting.eq(1),
                bus.araddr.eq(request.address),
                bus.awaddr.eq(request.address),
                bus.wdata.eq(request.data),
                bus.wstrb.eq(-1),
                bus.arvalid.eq(~request.write),
                bus.awvalid.eq(request.write),
                bus.wvalid.eq(request.write),
            ]
        for channel in ("ar", "aw", "w"):
            valid = getattr(bus, f"{channel}valid")
            with m.If(valid & getattr(bus, f"{channel}ready")):
                m.d.sync += valid.eq(0)
        m.d.comb += [
            bus.rready.eq(1),
            bus.bready.eq(1),
            host.done.eq(waiting & (bus.rvalid | bus.bvalid)),
            host.data.eq(bus.rdata),
            host.error.eq((bus.rvalid & bus.rresp[1]) | (bus.bvalid & bus.bresp[1])),
        ]
        with m.If(host.done):
            m.d.sync += waiting.eq(0)
        return m


class BoardRegisters(wiring.Component):
    """`BoardRegister`: identification of the board, and the limit of its memory.

    Timing: one request per cycle, answered in the next cycle.

    Ports
    -----
    host : words of 32 bits; an error at addresses without a register
    dropped : value of the register DROPPED
    limit : value of MEMORY_LIMIT; after power-up, the size of the memory
    start : high for a cycle when PROCESSOR is written, if there is a processor
    """

    def __init__(self, config: Config, around: Surroundings) -> None:
        self._size = around.memory_bytes
        processor = around.processor
        self._has_processor = processor is not None
        self._constants = {
            BoardRegister.IDENTITY: protocol.IDENTITY,
            BoardRegister.VERSION: protocol.VERSION,
            BoardRegister.CONFIGURATION: protocol.configuration_hash(config),
            BoardRegister.MEMORY_BYTES: around.memory_bytes,
            BoardRegister.CLOCK_HZ: around.clock_hz,
            BoardRegister.PROCESSOR: 0
            if processor is None
            else processor.memory_bytes + protocol.PROCESSOR_VERSION,
        }
        ports = {
            "host": In(HostAccessSignature()),
            "dropped": In(16),
            "limit": Out(range(self._size + 1), init=self._size),
        }
        if self._has_processor:
            ports["start"] = Out(1)
        super().__init__(ports)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        host, request = self.host, self.host.request.payload
        number = request.address[2:30]
        values = {
            **self._constants,
            BoardRegister.DROPPED: self.dropped,
            BoardRegister.MEMORY_LIMIT: self.limit,
        }
        m.d.comb += host.request.ready.eq(1)
        m.d.sync += [host.done.eq(host.request.valid), host.error.eq(0)]
        with m.Switch(number):
            for register, value in values.items():
                with m.Case(register):
                    m.d.sync += host.data.eq(value)
            with m.Default():
                m.d.sync += host.error.eq(1)
        is_limit = number == BoardRegister.MEMORY_LIMIT
        with m.If(host.request.valid & request.write & is_limit):
            m.d.sync += self.limit.eq(request.data)
        if self._has_processor:
            is_start = number == BoardRegister.PROCESSOR
            m.d.comb += self.start.eq(host.request.valid & request.write & is_start)
        return m


def route(m: Module, access: Any, targets: Mapping[int, Any], bits: slice = slice(30, 32)) -> None:
    """Connect ``access`` to one of ``targets``, selected by ``bits`` of the address; an access
    without a target returns an error.
    """
    request = access.request
    chosen = Signal(bits.stop - bits.start)
    latest, wrong = Signal.like(chosen), Signal()
    m.d.comb += chosen.eq(request.payload.address[bits])
    m.d.sync += wrong.eq(0)
    with m.If(request.valid & request.ready):
        m.d.sync += latest.eq(chosen)
    for target in targets.values():
        m.d.comb += target.request.payload.eq(request.payload)
    with m.Switch(chosen):
        for number, target in targets.items():
            with m.Case(number):
                m.d.comb += [
                    target.request.valid.eq(request.valid),
                    request.ready.eq(target.request.ready),
                ]
        with m.Default():
            m.d.comb += request.ready.eq(1)
            m.d.sync += wrong.eq(request.valid)
    with m.Switch(latest):
        for number, target in targets.items():
            with m.Case(number):
                m.d.comb += [
                    access.done.eq(target.done),
                    access.data.eq(target.data),
                    access.error.eq(target.error),
                ]
        with m.Default():
            m.d.comb += [access.done.eq(wrong), access.error.eq(1)]
