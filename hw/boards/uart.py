"""A serial line, 8N1: a start bit (0), eight data bits with the lowest first, and a stop bit (1).

``divisor`` is the number of clock cycles per bit: at least 2 if both ends share a clock, as in
simulation, and at least 4 otherwise, so that every bit is sampled within its period.
"""

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

_DATA_BITS = 8


class UartReceiver(wiring.Component):
    """Receives bytes from a line; each bit is sampled in its middle.

    A start bit that is over by its middle is ignored as a glitch; a byte without its stop bit is
    dropped.

    Timing: a byte is offered for a single cycle, in the middle of its stop bit, without
    backpressure.

    Ports
    -----
    pin : the line, asynchronous
    o : the bytes
    """

    def __init__(self, divisor: int) -> None:
        self._divisor = divisor
        super().__init__({"pin": In(1, init=1), "o": Out(stream.Signature(8, always_ready=True))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        line = Signal(init=1)
        m.submodules.synchronizer = FFSynchronizer(self.pin, line, init=1)
        timer = Signal(range(self._divisor))
        # Bits left to receive, including the stop bit; 0 while idle.
        left = Signal(range(_DATA_BITS + 3))
        m.d.sync += self.o.valid.eq(0)
        with m.If(left == 0):
            m.d.sync += timer.eq(self._divisor // 2 - 1)
            with m.If(~line):
                m.d.sync += left.eq(_DATA_BITS + 2)
        with m.Elif(timer != 0):
            m.d.sync += timer.eq(timer - 1)
        with m.Else():
            m.d.sync += [timer.eq(self._divisor - 1), left.eq(left - 1)]
            with m.If(left == _DATA_BITS + 2):
                with m.If(line):
                    m.d.sync += left.eq(0)
            with m.Elif(left == 1):
                m.d.sync += self.o.valid.eq(line)
            with m.Else():
                m.d.sync += self.o.payload.eq(Cat(self.o.payload[1:], line))
        return m


class UartTransmitter(wiring.Component):
    """Sends bytes on a line.

    Timing: the start bit begins in the cycle after a byte is accepted; the next byte can be
    accepted in the last cycle of the stop bit.

    Ports
    -----
    i : the bytes
    pin : the line, registered
    """

    def __init__(self, divisor: int) -> None:
        self._divisor = divisor
        super().__init__({"i": In(stream.Signature(8)), "pin": Out(1, init=1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        timer = Signal(range(self._divisor))
        bits = Signal(_DATA_BITS + 1)
        left = Signal(range(_DATA_BITS + 2))
        m.d.comb += self.i.ready.eq((left == 0) & (timer == 0))
        with m.If(timer != 0):
            m.d.sync += timer.eq(timer - 1)
        with m.Elif(left != 0):
            m.d.sync += [
                self.pin.eq(bits[0]),
                bits.eq(Cat(bits[1:], 1)),
                left.eq(left - 1),
                timer.eq(self._divisor - 1),
            ]
        with m.Elif(self.i.valid):
            m.d.sync += [
                self.pin.eq(0),
                bits.eq(Cat(self.i.payload, 1)),
                left.eq(_DATA_BITS + 1),
                timer.eq(self._divisor - 1),
            ]
        return m
