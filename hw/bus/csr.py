"""The register file: an AXI4-Lite slave made from the table in `amaranth_vta.hw.registers`."""

from dataclasses import fields
from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.registers import (
    ADDRESS_WIDTH,
    COUNTER_WIDTH,
    COUNTERS,
    COUNTERS_END,
    COUNTERS_OFFSET,
    IDENTITY,
    REGISTERS,
    VERSION,
    WORD_BYTES,
    Access,
)

from .axi import AXI4LiteSignature


class RegisterFile(wiring.Component):
    """Registers that software reads and writes.

    Each register that can be written has an output with its name in lower case, which holds its
    value or, for a command, is high for one cycle; each that can only be read has an input.
    Configuration and identification are constants.

    Timing: a write shows at the outputs in the cycle after address and data have both been
    taken; a read samples its inputs in the cycle in which the address is taken, one of a counter
    in the first cycle from then on in which ``counters_ready`` is high. Every address is answered:
    one without a register reads as zero and ignores writes. One read is answered before the next is
    taken. Every path from an input of ``bus`` to an output has a register.

    Ports
    -----
    bus : AXI4-Lite slave, 32 bits
    counter_index : which counter is read; ``counter_value`` is its value in the same cycle
    counters_ready : a read of a counter waits for it
    """

    def __init__(self, config: Config) -> None:
        constants = {item.name.upper(): getattr(config, item.name) for item in fields(config)}
        self._constants = {**constants, "IDENTITY": IDENTITY, "VERSION": VERSION}
        super().__init__(
            {
                "bus": In(AXI4LiteSignature(8 * WORD_BYTES, ADDRESS_WIDTH)),
                "counter_index": Out(range(len(COUNTERS))),
                "counter_value": In(COUNTER_WIDTH),
                "counters_ready": In(1),
                **{
                    register.name.lower(): In(register.width)
                    if register.access is Access.READ
                    else Out(register.width, init=register.init)
                    for register in REGISTERS.values()
                    if register.name not in self._constants
                    and register.access is not Access.COUNTER
                },
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bus = self.bus
        word = slice((WORD_BYTES - 1).bit_length(), ADDRESS_WIDTH)

        # Writes. Address and data come in any order, and wait for the answer to be taken.
        address, address_held = Signal(ADDRESS_WIDTH), Signal()
        data, strobe, data_held = Signal(8 * WORD_BYTES), Signal(WORD_BYTES), Signal()
        write = Signal()
        m.d.comb += [
            bus.awready.eq(~address_held),
            bus.wready.eq(~data_held),
            write.eq(address_held & data_held & (~bus.bvalid | bus.bready)),
            bus.bresp.eq(0),
        ]
        with m.If(bus.awvalid & bus.awready):
            m.d.sync += [address.eq(bus.awaddr), address_held.eq(1)]
        with m.If(bus.wvalid & bus.wready):
            m.d.sync += [data.eq(bus.wdata), strobe.eq(bus.wstrb), data_held.eq(1)]
        with m.If(bus.bready):
            m.d.sync += bus.bvalid.eq(0)
        with m.If(write):
            m.d.sync += [address_held.eq(0), data_held.eq(0), bus.bvalid.eq(1)]

        # Reads. That of a counter may have to wait. ``arready`` must not depend on an address that
        # is only offered: the address is taken, and held.
        read, waiting = Signal(), Signal()
        read_data, of_counter = Signal(8 * WORD_BYTES), Signal()
        read_address, read_held = Signal(ADDRESS_WIDTH), Signal(ADDRESS_WIDTH)
        m.d.comb += [
            bus.arready.eq(~bus.rvalid & ~waiting),
            read_address.eq(Mux(waiting, read_held, bus.araddr)),
            of_counter.eq((read_address >= COUNTERS_OFFSET) & (read_address < COUNTERS_END)),
            self.counter_index.eq((read_address - COUNTERS_OFFSET) >> word.start + 1),
            read.eq((bus.arvalid & bus.arready | waiting) & (self.counters_ready | ~of_counter)),
            bus.rresp.eq(0),
        ]
        with m.If(bus.arvalid & bus.arready):
            m.d.sync += [read_held.eq(bus.araddr), waiting.eq(1)]
        with m.If(bus.rready):
            m.d.sync += bus.rvalid.eq(0)
        with m.If(read):
            m.d.sync += [bus.rvalid.eq(1), bus.rdata.eq(read_data), waiting.eq(0)]

        with m.Switch(read_address[word]):
            for register in REGISTERS.values():
                if register.access in (Access.COMMAND, Access.COUNTER):
                    continue
                value: Any = self._constants.get(register.name)
                if value is None:
                    value = getattr(self, register.name.lower())
                    for number in range(register.width // (8 * WORD_BYTES)):
                        with m.Case(register.offset // WORD_BYTES + number):
                            m.d.comb += read_data.eq(value.word_select(number, 8 * WORD_BYTES))
                else:
                    with m.Case(register.offset // WORD_BYTES):
                        m.d.comb += read_data.eq(value)

        if self._constants["COUNTERS"]:
            with m.If(of_counter):
                m.d.comb += read_data.eq(
                    self.counter_value.word_select(read_address[word.start], 8 * WORD_BYTES)
                )

        for register in REGISTERS.values():
            if register.access in (Access.READ, Access.COUNTER):
                continue
            target = getattr(self, register.name.lower())
            if register.access is Access.COMMAND:
                m.d.sync += target.eq(0)
            for number in range(register.width // (8 * WORD_BYTES)):
                part = target.word_select(number, 8 * WORD_BYTES)
                with m.If(write & (address[word] == register.offset // WORD_BYTES + number)):
                    # Each byte has an enable: no LUT selects between its new value and the old one.
                    for byte in range(WORD_BYTES):
                        with m.If(strobe[byte]):
                            m.d.sync += part.word_select(byte, 8).eq(data.word_select(byte, 8))
        return m
