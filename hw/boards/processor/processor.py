"""A processor with its memory and peripherals, beside the machine: `ProcessorSystem`."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from amaranth_vta.hw.boards import protocol
from amaranth_vta.hw.boards.link import HostAccessSignature
from amaranth_vta.hw.boards.registers import route

from .arbiter import AccessArbiter
from .flash import FlashReader, FlashSignature
from .memory import FirmwareMemory
from .parameters import (
    BOARD_BASE,
    FLASH_BASE,
    MACHINE_BASE,
    MAP_BITS,
    PERIPHERAL_BASE,
    SHARED_BASE,
    Interrupt,
    SoftProcessor,
)
from .peripherals import Peripherals
from .riscv_core import RiscvCore

# Addresses of what the processor shares with the host, and the host's addresses of the same.
_OF_HOST = {SHARED_BASE: 0, MACHINE_BASE: protocol.MACHINE_BASE, BOARD_BASE: protocol.BOARD_BASE}


class ProcessorSystem(wiring.Component):
    """The core, the memory of its firmware, its peripherals, and a reader of the flash memory if
    the board has one.

    Instructions are fetched from the memory of the firmware only: a fetch address outside it wraps
    into it.

    Timing: a load or store takes 2 cycles in the memory of the firmware and in the peripherals, and
    elsewhere one more than its target. While ``rst`` is high, the memory of the firmware is
    accessible to the host; an access in flight when it rises completes without effect on the core.

    Ports
    -----
    rst : holds the processor in reset
    irq : interrupt of the machine
    access : accesses to the rest of the board
    host : the host's accesses to the memory of the firmware
    i, o : bytes from and to the serial line
    flash : pins of the flash memory, if there is one
    """

    def __init__(self, parameters: SoftProcessor) -> None:
        self._memory = FirmwareMemory(parameters)
        self._has_flash = parameters.has_flash
        ports = {
            "rst": In(1),
            "irq": In(1),
            "access": Out(HostAccessSignature()),
            "host": In(HostAccessSignature()),
            "i": In(stream.Signature(8, always_ready=True)),
            "o": Out(stream.Signature(8)),
        }
        if parameters.has_flash:
            ports["flash"] = Out(FlashSignature())
        super().__init__(ports)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.core = core = RiscvCore()
        m.submodules.memory = memory = self._memory
        m.submodules.peripherals = peripherals = Peripherals()
        # Instructions wait for data: the core fetches only when its cache misses.
        m.submodules.data_arbiter = data_arbiter = AccessArbiter()
        m.submodules.memory_arbiter = memory_arbiter = AccessArbiter()
        m.d.comb += [
            core.rst.eq(self.rst),
            peripherals.rst.eq(self.rst),
            core.interrupts[Interrupt.MACHINE].eq(self.irq),
        ]
        connect(m, flipped(self.host), data_arbiter.first)
        connect(m, data_arbiter.o, memory_arbiter.first)
        connect(m, core.instructions, memory_arbiter.second)
        connect(m, memory_arbiter.o, memory.access)
        connect(m, flipped(self.i), peripherals.i)
        connect(m, peripherals.o, flipped(self.o))
        targets = {
            protocol.FIRMWARE_BASE: data_arbiter.second,
            PERIPHERAL_BASE: peripherals.access,
            **dict.fromkeys(_OF_HOST, self.access),
        }
        if self._has_flash:
            m.submodules.flash = flash = FlashReader()
            m.d.comb += flash.rst.eq(self.rst)
            connect(m, flash.pins, flipped(self.flash))
            targets[FLASH_BASE] = flash.access
        route(m, core.data, {_number(base): item for base, item in targets.items()}, MAP_BITS)
        with m.Switch(core.data.request.payload.address[MAP_BITS]):
            for base, of_host in _OF_HOST.items():
                with m.Case(_number(base)):
                    number = self.access.request.payload.address[MAP_BITS]
                    m.d.comb += number.eq(_number(of_host))
        return m


def _number(base: int) -> int:
    """The value of `MAP_BITS` from the address ``base`` on."""
    return base >> MAP_BITS.start
