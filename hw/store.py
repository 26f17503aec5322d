"""The store module: writes the low bits of accumulators to memory."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from . import isa
from .bus.axi import WriteSignature
from .config import Config
from .dma.storer import Storer
from .dma.transfer import moved_elements
from .fabric.buffer import ReadPortSignature, geometry
from .fabric.groups import TOGETHER, ClockGroups
from .fabric.issue import InOrder, ModuleSignature
from .fabric.structures import ADDRESS_WIDTH


class Store(wiring.Component):
    """Executes STOREs; exchanges tokens with compute.

    Timing: an instruction retires, and gives its tokens, a cycle after memory has answered the
    last of its bursts; the bursts of the next one are written meanwhile.

    Ports
    -----
    (all of `ModuleSignature`)
    base : DRAM address of element 0 of OUT
    scratchpad : read port of the low bits of the accumulators
    write : the memory write port
    stop, drained, moved : as in `Storer`
    """

    def __init__(self, config: Config, groups: ClockGroups = TOGETHER) -> None:
        self._config = config
        self._groups = groups
        out = geometry(config, isa.Memory.OUT)
        super().__init__(
            {
                **ModuleSignature(isa.Module.STORE).members,
                "base": In(ADDRESS_WIDTH),
                "scratchpad": Out(
                    ReadPortSignature(config.out.element_bits, config.out.depth, out.elements)
                ),
                "write": Out(WriteSignature(8 * config.bus_bytes)),
                "stop": In(1),
                "drained": Out(1),
                "moved": Out(moved_elements(config, [isa.Memory.OUT])),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.order = order = InOrder(self._config, isa.Module.STORE, [isa.Cause.BUS_ERROR])
        storer = Storer(self._config)
        m.submodules.storer = self._groups.member("store_dma", storer)
        self._groups.activate(m, "store_dma", storer.active)
        order.connect(m, self)
        connect(m, storer.scratchpad, flipped(self.scratchpad))
        connect(m, storer.write, flipped(self.write))

        order.connect_unit(m, storer, isa.Opcode.STORE)
        m.d.comb += [
            storer.base.eq(self.base),
            storer.stop.eq(self.stop),
            self.drained.eq(storer.drained),
            self.moved.eq(storer.moved),
        ]
        return m
