"""The design of a board: the machine, its memory, and the host's serial line."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from amaranth_vta.hw.bus.axi import AXI4Signature
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.top import Top

from . import protocol
from .link import Link
from .memory import OnChipMemory
from .registers import BoardRegisters, RegisterAccess, Surroundings, route
from .sdram.memory import SdramMemory
from .sdram.pins import SdramSignature
from .uart import UartReceiver, UartTransmitter

# Cycles for which the machine is held in reset after power-up.
_RESET_CYCLES = 15


class BoardSystem(wiring.Component):
    """The whole design of a board except its clock and its pins.

    Timing: the machine is in reset for 15 cycles after power-up and after ``rst`` falls; the link
    runs from the first cycle on.

    Ports
    -----
    rx, tx : the serial line
    rst : holds the machine in reset, for instance until the clock is stable
    sdram : pins of the memory chip, if ``around`` has one
    """

    def __init__(self, config: Config, around: Surroundings) -> None:
        self._config = config
        self._around = around
        ports = {"rst": In(1), "rx": In(1, init=1), "tx": Out(1, init=1)}
        if around.sdram is not None:
            ports["sdram"] = Out(SdramSignature(around.sdram))
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
        connect(m, link.o, transmitter.i)
        m.d.comb += [receiver.pin.eq(self.rx), self.tx.eq(transmitter.pin)]

        m.submodules.identity = identity = BoardRegisters(self._config, around)
        m.d.comb += [identity.dropped.eq(link.dropped), memory.limit.eq(identity.limit)]
        route(
            m,
            link.access,
            {
                protocol.BOARD_BASE >> 30: identity.host,
                protocol.MACHINE_BASE >> 30: registers.host,
                0: memory.host,
            },
        )
        return m

    def _memory(self, m: Module, bus: AXI4Signature) -> OnChipMemory | SdramMemory:
        around = self._around
        if around.sdram is None:
            return OnChipMemory(around.memory_bytes, bus)
        memory = SdramMemory(around.sdram, around.clock_hz, bus)
        m.d.comb += memory.rst.eq(self.rst)
        connect(m, memory.pins, flipped(self.sdram))
        return memory
