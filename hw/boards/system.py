"""The design of a board: the machine, its memory, the host's serial line, and a processor."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from amaranth_vta.hw.bus.axi import AXI4Signature
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.top import Top

from . import protocol
from .link import Link
from .memory import OnChipMemory
from .processor.arbiter import AccessArbiter
from .processor.flash import FlashSignature
from .processor.processor import ProcessorSystem
from .registers import BoardRegisters, RegisterAccess, Surroundings, route
from .sdram.memory import SdramMemory
from .sdram.pins import SdramSignature
from .uart import UartReceiver, UartTransmitter

# Cycles for which the machine is held in reset after power-up.
_RESET_CYCLES = 15


class BoardSystem(wiring.Component):
    """The whole design of a board except its clock and its pins.

    Timing: the machine is in reset for 15 cycles after power-up and after ``rst`` falls, and so is
    the processor, if ``around`` has one; the link runs from the first cycle on.

    The processor shares the serial line with the link: both receive all bytes, and the link answers
    nothing but requests with a correct checksum. The first access of the host stops the processor;
    `BoardRegister.PROCESSOR` starts it again.

    Ports
    -----
    rx, tx : the serial line
    rst : holds the machine in reset, for instance until the clock is stable
    sdram : pins of the memory chip, if ``around`` has one
    flash : pins of the flash memory, if ``around`` has one
    """

    def __init__(self, config: Config, around: Surroundings) -> None:
        self._config = config
        self._around = around
        ports = {"rst": In(1), "rx": In(1, init=1), "tx": Out(1, init=1)}
        if around.sdram is not None:
            ports["sdram"] = Out(SdramSignature(around.sdram))
        if around.has_flash:
            ports["flash"] = Out(FlashSignature())
        super().__init__(ports)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        around = self._around
        held = Signal(range(_RESET_CYCLES + 1))
        with m.If(self.rst):
            m.d.sync += held.eq(0)
        with m.Elif(held != _RESET_CYCLES):
            m.d.sync += held.eq(held + 1)
        m.submodules.machine = machine = Top(self._config)
        m.d.comb += machine.rst.eq(held != _RESET_CYCLES)
        bus = machine.signature.members["m_axi"].signature
        m.submodules.memory = memory = self._memory(m, bus)
        connect(m, machine.m_axi, memory.axi)
        m.submodules.registers = registers = RegisterAccess()
        connect(m, registers.bus, machine.s_axil)

        m.submodules.receiver = receiver = UartReceiver(around.divisor)
        m.submodules.transmitter = transmitter = UartTransmitter(around.divisor)
        m.submodules.link = link = Link(around.gap_bits * around.divisor)
        connect(m, receiver.o, link.i)
        m.d.comb += [receiver.pin.eq(self.rx), self.tx.eq(transmitter.pin)]

        m.submodules.identity = identity = BoardRegisters(self._config, around)
        m.d.comb += [identity.dropped.eq(link.dropped), memory.limit.eq(identity.limit)]
        targets = {
            protocol.BOARD_BASE >> 30: identity.host,
            protocol.MACHINE_BASE >> 30: registers.host,
            0: memory.host,
        }
        if around.processor is None:
            connect(m, link.o, transmitter.i)
            route(m, link.access, targets)
            return m
        m.submodules.processor = processor = ProcessorSystem(around.processor)
        connect(m, receiver.o, processor.i)
        if around.has_flash:
            connect(m, processor.flash, flipped(self.flash))
        targets[protocol.FIRMWARE_BASE >> 30] = processor.host
        m.submodules.arbiter = arbiter = AccessArbiter()
        connect(m, link.access, arbiter.first)
        connect(m, processor.access, arbiter.second)
        route(m, arbiter.o, targets)
        stopped = Signal()
        with m.If(identity.start):
            m.d.sync += stopped.eq(0)
        with m.Elif(link.access.request.valid):
            m.d.sync += stopped.eq(1)
        m.d.comb += [processor.rst.eq(stopped | machine.rst), processor.irq.eq(machine.irq)]
        # The link has the next byte of a reply ready while its predecessor is sent.
        for sender, allowed in ((link.o, 1), (processor.o, ~link.o.valid)):
            m.d.comb += sender.ready.eq(transmitter.i.ready & allowed)
        m.d.comb += [
            transmitter.i.valid.eq(link.o.valid | processor.o.valid),
            transmitter.i.payload.eq(Mux(link.o.valid, link.o.payload, processor.o.payload)),
        ]
        return m

    def _memory(self, m: Module, bus: AXI4Signature) -> OnChipMemory | SdramMemory:
        around = self._around
        if around.sdram is None:
            return OnChipMemory(around.memory_bytes, bus)
        memory = SdramMemory(around.sdram, around.clock_hz, bus)
        m.d.comb += memory.rst.eq(self.rst)
        connect(m, memory.pins, flipped(self.sdram))
        return memory
