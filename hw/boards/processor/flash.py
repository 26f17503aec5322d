"""Reads a board's serial flash memory: `FlashReader`."""

from typing import Any

from amaranth.hdl import Cat, Const, Instance, Module, Signal
from amaranth.lib import io, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.boards.link import HostAccessSignature
from amaranth_vta.hw.boards.protocol import WORD_BYTES

# The command of all serial flash memories for reads up to at least 33 MHz, with an address of 24
# bits.
READ = 0x03
ADDRESS_BITS = 24
_WORD_BITS = 8 * WORD_BYTES
# Clock pulses before the chip is selected: the primitive that drives the clock of an ECP5's flash
# may swallow the first ones, and the chip has to be deselected for up to 100 ns.
_DESELECTED = 8


class FlashSignature(wiring.Signature):
    """A flash memory as its reader sees it; ``cs`` is 1 while the chip is selected."""

    def __init__(self) -> None:
        super().__init__({"clk": Out(1), "cs": Out(1), "copi": Out(1), "cipo": In(1)})


class FlashReader(wiring.Component):
    """Streams words from a flash memory, in SPI mode 0.

    A write begins a transfer at the byte address in its data; each read returns the next word,
    whose first byte is the least significant. A read without a transfer is an error.

    Timing: two cycles per bit; ``cipo`` is sampled two cycles after the chip's clock falls. The
    first word has arrived 144 cycles after the write, each further one 64 cycles after its
    predecessor was read: the next word is prefetched. A read waits for its word. While ``rst``
    is high, the chip is deselected.

    Ports
    -----
    access : a single word, at any address
    rst : ends the transfer
    pins : the chip
    """

    access: In(HostAccessSignature())
    rst: In(1)
    pins: Out(FlashSignature())

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        access, request, pins = self.access, self.access.request.payload, self.pins
        waiting = Signal()
        bits = Signal(_WORD_BITS)
        left = Signal(range(2 * _WORD_BITS + 1))
        is_fetched = left == 0
        m.d.comb += [access.request.ready.eq(~waiting), pins.copi.eq(bits[-1])]
        m.d.sync += access.done.eq(waiting & is_fetched)
        with m.If(~is_fetched):
            m.d.sync += pins.clk.eq(~pins.clk)
            with m.If(pins.clk):
                m.d.sync += left.eq(left - 1)
                with m.If(pins.cs):
                    m.d.sync += bits.eq(Cat(pins.cipo, bits))
                with m.Elif(left == 1):
                    # The command, during which the chip sends nothing, and the first word.
                    m.d.sync += [pins.cs.eq(1), left.eq(2 * _WORD_BITS)]
        with m.Elif(waiting):
            m.d.sync += [
                waiting.eq(0),
                access.data.eq(Cat(bits.word_select(at, 8) for at in reversed(range(WORD_BYTES)))),
                access.error.eq(~pins.cs),
            ]
            with m.If(pins.cs):
                m.d.sync += left.eq(_WORD_BITS)
        with m.If(access.request.valid & access.request.ready):
            with m.If(request.write):
                m.d.sync += [
                    bits.eq(Cat(request.data[:ADDRESS_BITS], Const(READ, 8))),
                    left.eq(_DESELECTED),
                    pins.clk.eq(0),
                    pins.cs.eq(0),
                    access.done.eq(1),
                    access.error.eq(0),
                ]
            with m.Else():
                m.d.sync += waiting.eq(1)
        with m.If(self.rst):
            m.d.sync += [left.eq(0), pins.clk.eq(0), pins.cs.eq(0)]
        return m


class Ecp5FlashPins(wiring.Component):
    """Pins of the flash memory that configures an ECP5; a primitive drives the pin of its clock.

    Timing: no registers between bus and pins.

    Parameters
    ----------
    ports : of the platform's resource ``spi_flash``
    """

    bus: In(FlashSignature())

    def __init__(self, ports: Any) -> None:
        self._ports = ports
        super().__init__()

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bus = self.bus
        for name, value in (("cs", bus.cs), ("copi", bus.copi), ("hold", 0), ("wp", 0)):
            m.submodules[name] = pin = io.Buffer("o", getattr(self._ports, name))
            m.d.comb += pin.o.eq(value)
        m.submodules.cipo = cipo = io.Buffer("i", self._ports.cipo)
        m.d.comb += bus.cipo.eq(cipo.i)
        # USRMCLKTS disables the output.
        m.submodules.clk = Instance("USRMCLK", i_USRMCLKI=bus.clk, i_USRMCLKTS=Const(0))
        return m
