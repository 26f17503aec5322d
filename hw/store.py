"""The store module: writes the low bits of accumulators to memory or to the INP scratchpad."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from . import isa
from .bus.axi import WriteSignature
from .clock_groups import ONE_CLOCK, ClockGroups
from .config import Config
from .counters.events import Events, transfer_events, unit_events
from .dma.forwarder import Forwarder
from .dma.storer import Storer
from .dma.transfer import moved_elements
from .interfaces import ADDRESS_WIDTH, instruction_layout
from .issue.decode import Decoder
from .issue.in_order import InOrder, ModuleSignature
from .microarchitecture import Microarchitecture
from .scratchpad import ReadPortSignature, geometry


class Store(wiring.Component):
    """Executes STOREs; exchanges tokens with compute.

    Timing: an instruction retires and pushes its tokens one cycle after memory has answered its
    last burst; the next instruction's bursts are written meanwhile. A STORE to INP (extension
    FORWARD) starts when all older STOREs to memory are done, and younger ones start when it is
    done.

    Ports
    -----
    (all of `ModuleSignature`)
    base : DRAM address of element 0 of OUT
    scratchpad : read port of the low bits of the accumulators
    write : the memory write port
    stop, drained, moved : as in `Storer`
    inp, hold : as in `Forwarder`, with the extension FORWARD
    """

    def __init__(
        self,
        config: Config,
        groups: ClockGroups = ONE_CLOCK,
        choices: Microarchitecture | None = None,
    ) -> None:
        self._config = config
        self._groups = groups
        self._choices = choices or Microarchitecture.of(config)
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
                **(
                    {"inp": Out(geometry(config, isa.Memory.INP).write_port()), "hold": In(1)}
                    if config.forward
                    else {}
                ),
            }
        )

    @property
    def events(self) -> Events:
        """Increments of the counters of store."""
        return {
            "store_waits_for_compute": self.activity.lacks_prev,
            **transfer_events("store", self.status, self.write.beat, self.moved),
            **unit_events("store", self.activity, 1),
        }

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.order = order = InOrder(
            self._config, isa.Module.STORE, [isa.Cause.BUS_ERROR], self._choices
        )
        m.submodules.decoder = decoder = Decoder(self._config, units=1, choices=self._choices)
        storer = Storer(self._config, self._choices)
        m.submodules.storer = self._groups.member("store_dma", storer)
        self._groups.activate(m, "store_dma", storer.active)
        order.connect(m, self, decoder)
        if not self._config.forward:
            connect(m, storer.scratchpad, flipped(self.scratchpad))
        connect(m, storer.write, flipped(self.write))

        order.connect_unit(m, decoder, storer, isa.Opcode.STORE)
        m.d.comb += [
            storer.base.eq(self.base),
            storer.stop.eq(self.stop),
            self.drained.eq(storer.drained),
            self.moved.eq(storer.moved),
        ]
        if self._config.forward:
            self._forward(m, order, storer)
        return m

    def _forward(self, m: Module, order: InOrder, storer: Storer) -> None:
        """Add the forwarder. A unit accepts an instruction only while the other one is idle, so
        that both share the scratchpad's read port.
        """
        m.submodules.forwarder = forwarder = Forwarder(self._config)
        fields = data.View(
            instruction_layout(self._config, isa.Opcode.STORE), order.head.entry.bits
        )
        forwards = fields.memory == isa.Memory.INP
        # One cycle late: whether the storer is idle depends on the memory's answer.
        storer_rests = Signal()
        m.d.sync += storer_rests.eq(storer.idle & ~storer.command.valid)
        connect(m, forwarder.inp, flipped(self.inp))
        m.d.comb += [
            forwarder.hold.eq(self.hold),
            forwarder.command.payload.eq(storer.command.payload),
            forwarder.command.valid.eq(order.start & forwards),
            storer.command.valid.eq(order.start & ~forwards),
            order.unit_ready.eq(
                storer.command.ready
                & Mux(forwards, storer_rests & forwarder.command.ready, forwarder.idle)
            ),
            order.done.eq(storer.done | forwarder.done),
            self.scratchpad.enable.eq(storer.scratchpad.enable | forwarder.scratchpad.enable),
            self.scratchpad.index.eq(
                Mux(forwarder.idle, storer.scratchpad.index, forwarder.scratchpad.index)
            ),
            storer.scratchpad.data.eq(self.scratchpad.data),
            forwarder.scratchpad.data.eq(self.scratchpad.data),
        ]
