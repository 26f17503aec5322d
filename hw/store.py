"""The store module: writes accumulators, cut to their low bits, to memory."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from . import isa
from .bus.axi import WriteSignature
from .config import Config
from .dma.storer import Storer
from .dma.transfer import moved_elements, transfer
from .fabric.buffer import ReadPortSignature, geometry
from .fabric.issue import InOrder, ModuleSignature
from .fabric.structures import ADDRESS_WIDTH, instruction_layout


class Store(wiring.Component):
    """Executes STOREs; its one neighbour is compute.

    Timing: an instruction retires, and gives its tokens, two cycles after memory has answered the
    last of its bursts; the bursts of the next one are written meanwhile.

    Ports
    -----
    (all of `ModuleSignature`)
    base : DRAM address of element 0 of OUT
    scratchpad : read port of the low bits of the accumulators
    write : the memory write port
    stop, drained, moved : as those of `Storer`
    """

    def __init__(self, config: Config) -> None:
        self._config = config
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
        m.submodules.order = order = InOrder(
            self._config, isa.Module.STORE, [isa.Memory.OUT], [isa.Cause.BUS_ERROR]
        )
        m.submodules.storer = storer = Storer(self._config)
        order.connect(m, self)
        connect(m, storer.scratchpad, flipped(self.scratchpad))
        connect(m, storer.write, flipped(self.write))

        fields = data.View(
            instruction_layout(self._config, isa.Opcode.STORE), order.head.entry.bits
        )
        m.d.comb += [
            order.illegal.eq(
                (fields.memory != isa.Memory.OUT)
                | (fields.reserved != 0)
                | (fields.y_pad_0 != 0)
                | (fields.y_pad_1 != 0)
                | (fields.x_pad_0 != 0)
                | (fields.x_pad_1 != 0)
            ),
            order.out_of_range.eq(order.head.out_of_range),
            order.unit.eq(1),
            order.unit_ready.eq(storer.command.ready),
            order.may_start.eq(1),
            storer.command.valid.eq(order.start),
            storer.command.payload.eq(transfer(self._config, order.head)),
            storer.base.eq(self.base),
            storer.stop.eq(self.stop),
            self.drained.eq(storer.drained),
            self.moved.eq(storer.moved),
            order.done.eq(storer.done),
            order.error.eq(storer.error),
            order.drained.eq(storer.idle),
        ]
        return m
