"""Registers of several machines behind one port: `RegisterDecoder`."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.bus.axi import AXI4LiteSignature
from amaranth_vta.hw.registers import ADDRESS_WIDTH, WORD_BYTES

from .parameters import id_bits


class RegisterDecoder(wiring.Component):
    """Forwards each register access to the machine that the upper bits of its address name.

    Timing: one read and one write at a time; each takes three cycles more than at the machine.
    Every path from an input of ``bus`` to an output is registered. Accesses beyond the last machine
    are answered: they read as zero and ignore writes.

    Parameters
    ----------
    machines : number of machines, at least 2

    Ports
    -----
    bus : AXI4-Lite slave; the registers of machine k begin at byte k * 4096
    machines : their registers
    """

    def __init__(self, machines: int) -> None:
        bits = 8 * WORD_BYTES
        address = ADDRESS_WIDTH + id_bits(machines)
        super().__init__(
            {
                "bus": In(AXI4LiteSignature(bits, address)),
                "machines": Out(AXI4LiteSignature(bits, ADDRESS_WIDTH)).array(machines),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        self._write(m)
        self._read(m)
        return m

    def _write(self, m: Module) -> None:
        bus = self.bus
        address, data = Signal.like(bus.awaddr), Signal.like(bus.wdata)
        strobe = Signal.like(bus.wstrb)
        # Accepted from the host, and accepted by the machine.
        address_held, data_held, address_sent, data_sent = held = [
            Signal(name=name) for name in ("aw_held", "w_held", "aw_sent", "w_sent")
        ]
        forwards, done = Signal(name="writes"), Signal(name="write_done")
        m.d.comb += [
            bus.awready.eq(~address_held),
            bus.wready.eq(~data_held),
            bus.bresp.eq(0),
            forwards.eq(address_held & data_held & ~bus.bvalid),
        ]
        with m.If(bus.awvalid & bus.awready):
            m.d.sync += [address.eq(bus.awaddr), address_held.eq(1)]
        with m.If(bus.wvalid & bus.wready):
            m.d.sync += [data.eq(bus.wdata), strobe.eq(bus.wstrb), data_held.eq(1)]
        with m.If(bus.bready):
            m.d.sync += bus.bvalid.eq(0)
        for machine in self.machines:
            m.d.comb += [
                machine.awaddr.eq(address),
                machine.wdata.eq(data),
                machine.wstrb.eq(strobe),
            ]
        with m.Switch(address[ADDRESS_WIDTH:]):
            for number, machine in enumerate(self.machines):
                with m.Case(number):
                    m.d.comb += [
                        machine.awvalid.eq(forwards & ~address_sent),
                        machine.wvalid.eq(forwards & ~data_sent),
                        machine.bready.eq(forwards),
                        done.eq(forwards & machine.bvalid),
                    ]
                    with m.If(machine.awvalid & machine.awready):
                        m.d.sync += address_sent.eq(1)
                    with m.If(machine.wvalid & machine.wready):
                        m.d.sync += data_sent.eq(1)
            with m.Default():
                m.d.comb += done.eq(forwards)
        with m.If(done):
            m.d.sync += [bus.bvalid.eq(1), *(item.eq(0) for item in held)]

    def _read(self, m: Module) -> None:
        bus = self.bus
        address, held, sent = (
            Signal.like(bus.araddr),
            Signal(name="ar_held"),
            Signal(name="ar_sent"),
        )
        data, done, forwards = (
            Signal.like(bus.rdata),
            Signal(name="read_done"),
            Signal(name="reads"),
        )
        m.d.comb += [
            bus.arready.eq(~held),
            bus.rresp.eq(0),
            forwards.eq(held & ~bus.rvalid),
        ]
        with m.If(bus.arvalid & bus.arready):
            m.d.sync += [address.eq(bus.araddr), held.eq(1)]
        with m.If(bus.rready):
            m.d.sync += bus.rvalid.eq(0)
        for machine in self.machines:
            m.d.comb += machine.araddr.eq(address)
        with m.Switch(address[ADDRESS_WIDTH:]):
            for number, machine in enumerate(self.machines):
                with m.Case(number):
                    m.d.comb += [
                        machine.arvalid.eq(forwards & ~sent),
                        machine.rready.eq(forwards),
                        done.eq(forwards & machine.rvalid),
                        data.eq(machine.rdata),
                    ]
                    with m.If(machine.arvalid & machine.arready):
                        m.d.sync += sent.eq(1)
            with m.Default():
                m.d.comb += done.eq(forwards)
        with m.If(done):
            m.d.sync += [bus.rvalid.eq(1), bus.rdata.eq(data), held.eq(0), sent.eq(0)]
