"""The processor's end of the serial line, and its clock: `Peripherals`."""

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.boards.link import HostAccessSignature

from .parameters import RECEIVED_BYTES, Peripheral


class Peripherals(wiring.Component):
    """`Peripheral`: the registers with which firmware receives and sends bytes and reads the time.

    Timing: one request per cycle, answered in the next cycle. A byte to send is offered from the
    cycle after its write until it is accepted; a received byte can be read in the cycle after it
    arrives.

    Ports
    -----
    access : words of 32 bits; an error at addresses without a register
    i : received bytes; those beyond `RECEIVED_BYTES` unread ones are lost
    o : bytes to send
    rst : empties both directions
    """

    access: In(HostAccessSignature())
    i: In(stream.Signature(8, always_ready=True))
    o: Out(stream.Signature(8))
    rst: In(1)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        access, request = self.access, self.access.request.payload
        number = request.address[2:4]
        reads = Signal()
        m.submodules.received = received = SyncFIFO(width=8, depth=RECEIVED_BYTES)
        lost = Signal()
        cycles, upper = Signal(64), Signal(32)
        m.d.comb += [
            access.request.ready.eq(1),
            reads.eq(access.request.valid & ~request.write),
            received.w_data.eq(self.i.payload),
            received.w_en.eq(self.i.valid),
            received.r_en.eq((reads & (number == Peripheral.RECEIVE)) | self.rst),
        ]
        m.d.sync += [
            cycles.eq(cycles + 1),
            access.done.eq(access.request.valid),
            access.error.eq(request.address[4:8].any()),
        ]
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(access.request.valid & request.write & (number == Peripheral.SEND)):
            m.d.sync += [self.o.valid.eq(1), self.o.payload.eq(request.data)]
        with m.If(reads):
            with m.Switch(number):
                with m.Case(Peripheral.RECEIVE):
                    valid = received.r_rdy
                    m.d.sync += access.data.eq(
                        Cat(received.r_data & valid.replicate(8), valid, lost)
                    )
                    m.d.sync += lost.eq(0)
                with m.Case(Peripheral.SEND):
                    m.d.sync += access.data.eq(self.o.valid)
                with m.Case(Peripheral.CYCLES_LOW):
                    m.d.sync += [access.data.eq(cycles), upper.eq(cycles >> 32)]
                with m.Case(Peripheral.CYCLES_HIGH):
                    m.d.sync += access.data.eq(upper)
        with m.If(self.i.valid & ~received.w_rdy):
            m.d.sync += lost.eq(1)
        with m.If(self.rst):
            m.d.sync += [lost.eq(0), self.o.valid.eq(0)]
        return m
