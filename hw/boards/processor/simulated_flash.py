"""A simulated serial flash memory: `SimulatedFlash`."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In

from .flash import ADDRESS_BITS, READ, FlashSignature

_COMMAND_BITS = 8 + ADDRESS_BITS


class SimulatedFlash(wiring.Component):
    """A chip with ``size`` bytes, a power of two, which contain ``data`` and then zeros.

    It understands one command, READ in SPI mode 0, and sends ones after any other.

    Timing: the next bit is on ``cipo`` from the second cycle after the clock falls.

    Ports
    -----
    bus : driven by the reader
    """

    bus: In(FlashSignature())

    def __init__(self, size: int, data: bytes = b"") -> None:
        self._size, self._data = size, data
        super().__init__()

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bus = self.bus
        # Simulators find the memory by this name.
        m.submodules.flash = flash = Memory(shape=8, depth=self._size, init=self._data)
        read = flash.read_port()
        clk = Signal()
        command, received = Signal(_COMMAND_BITS), Signal(range(_COMMAND_BITS + 1))
        bit, place, following = Signal(3), Signal(range(self._size)), Signal(range(self._size))
        is_complete = received == _COMMAND_BITS
        m.d.comb += [following.eq(place), read.addr.eq(following)]
        m.d.sync += [clk.eq(bus.clk), place.eq(following)]
        with m.If(~bus.cs):
            m.d.sync += [received.eq(0), bit.eq(0)]
        with m.Elif(bus.clk & ~clk & ~is_complete):
            m.d.sync += [command.eq(Cat(bus.copi, command)), received.eq(received + 1)]
            m.d.comb += following.eq(Cat(bus.copi, command))
        with m.Elif(~bus.clk & clk & is_complete):
            known = command[ADDRESS_BITS:] == READ
            m.d.sync += [
                bus.cipo.eq(Mux(known, read.data.bit_select(~bit, 1), 1)),
                bit.eq(bit + 1),
            ]
            m.d.comb += following.eq(place + (bit == 7))
        return m
