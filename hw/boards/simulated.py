"""A board without its clock and with its memory chips, for simulation: `SimulatedSystem`."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect

from amaranth_vta.hw.config import Config

from .processor.simulated_flash import SimulatedFlash
from .registers import Surroundings
from .sdram.simulated import SimulatedSdram
from .system import BoardSystem

# Size of the simulated flash memory.
FLASH_BYTES = 4 * 1024 * 1024


class SimulatedSystem(wiring.Component):
    """A `BoardSystem` with its SDRAM chip and its flash memory, if it has them.

    Timing: as `BoardSystem`.

    Ports
    -----
    rst, rx, tx : as in `BoardSystem`
    """

    rst: In(1)
    rx: In(1, init=1)
    tx: Out(1, init=1)

    def __init__(self, config: Config, around: Surroundings) -> None:
        self._config = config
        self._around = around
        super().__init__()

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        around = self._around
        m.submodules.system = system = BoardSystem(self._config, around)
        m.d.comb += [system.rst.eq(self.rst), system.rx.eq(self.rx), self.tx.eq(system.tx)]
        if around.sdram is not None:
            m.submodules.sdram = sdram = SimulatedSdram(around.sdram, around.clock_hz)
            connect(m, system.sdram, sdram.bus)
        if around.has_flash:
            m.submodules.flash = flash = SimulatedFlash(FLASH_BYTES)
            connect(m, system.flash, flash.bus)
        return m
