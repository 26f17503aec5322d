"""The load module: fills the input and weight scratchpads."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from . import isa
from .bus.axi import ReadSignature
from .config import Config
from .dma.loader import Loader
from .dma.transfer import Bases, moved_elements, sets_padding_wrongly, transfer
from .fabric.buffer import geometry
from .fabric.issue import InOrder, ModuleSignature
from .fabric.structures import instruction_layout

_MEMORIES = (isa.Memory.INP, isa.Memory.WGT)


class Load(wiring.Component):
    """Executes LOADs of INP and WGT, with their padding value; its one neighbour is compute.

    Timing: bursts of an instruction are asked for while the data of earlier ones arrive; it gives
    its tokens two cycles after its last element has been written.

    Ports
    -----
    (all of `ModuleSignature`)
    bases, read : DRAM base addresses, and the memory read port
    inp, wgt : write ports of the scratchpads
    moved : as that of `Loader`
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        super().__init__(
            {
                **ModuleSignature(isa.Module.LOAD).members,
                "bases": In(Bases),
                "read": Out(ReadSignature(8 * config.bus_bytes)),
                "inp": Out(geometry(config, isa.Memory.INP).write_port()),
                "wgt": Out(geometry(config, isa.Memory.WGT).write_port()),
                "moved": Out(moved_elements(config, _MEMORIES)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.order = order = InOrder(
            self._config, isa.Module.LOAD, _MEMORIES, [isa.Cause.BUS_ERROR]
        )
        m.submodules.loader = loader = Loader(self._config, _MEMORIES)
        order.connect(m, self)
        connect(m, loader.read, flipped(self.read))
        connect(m, loader.inp, flipped(self.inp))
        connect(m, loader.wgt, flipped(self.wgt))

        # Fetch hands nothing but LOADs to this module, of what is its own.
        fields = data.View(instruction_layout(self._config, isa.Opcode.LOAD), order.head.entry.bits)
        m.d.comb += [
            order.illegal.eq((fields.reserved != 0) | sets_padding_wrongly(self._config, fields)),
            order.out_of_range.eq(order.head.out_of_range),
            order.unit.eq(1),
            order.unit_ready.eq(loader.command.ready),
            order.may_start.eq(1),
            loader.command.valid.eq(order.start),
            loader.command.payload.eq(transfer(self._config, order.head)),
            loader.bases.eq(self.bases),
            order.done.eq(loader.done),
            order.error.eq(loader.error),
            order.drained.eq(loader.idle),
            self.moved.eq(loader.moved),
        ]
        return m
