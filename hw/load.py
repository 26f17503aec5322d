"""The load module: fills the input and weight scratchpads."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from . import isa
from .bus.axi import ReadSignature
from .clock_groups import ONE_CLOCK, ClockGroups
from .config import Config
from .counters.events import Events, transfer_events, unit_events
from .dma.loader import Loader
from .dma.transfer import Bases, moved_elements
from .issue.decode import Decoder
from .issue.in_order import InOrder, ModuleSignature
from .microarchitecture import Microarchitecture
from .scratchpad import geometry

_MEMORIES = isa.LOADED_BY_LOAD


class Load(wiring.Component):
    """Executes LOADs of INP and WGT, sets their padding value, and exchanges tokens with compute.

    Timing: bursts of an instruction are requested while data of older instructions arrive; tokens
    are pushed in the cycle in which its last element is written.

    Ports
    -----
    (all of `ModuleSignature`)
    bases, read : DRAM base addresses, and the memory read port
    inp, wgt : write ports of the scratchpads
    moved : as in `Loader`
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

    @property
    def events(self) -> Events:
        """Increments of the counters of load."""
        return {
            "load_waits_for_compute": self.activity.lacks_next,
            **transfer_events("load", self.status, self.read.beat, self.moved),
            **unit_events("load", self.activity, 1),
        }

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.order = order = InOrder(
            self._config, isa.Module.LOAD, [isa.Cause.BUS_ERROR], self._choices
        )
        m.submodules.decoder = decoder = Decoder(self._config, units=1, choices=self._choices)
        loader = Loader(self._config, _MEMORIES, self._choices)
        m.submodules.loader = self._groups.member("load_dma", loader)
        self._groups.activate(m, "load_dma", loader.active)
        order.connect(m, self, decoder)
        connect(m, loader.read, flipped(self.read))
        connect(m, loader.inp, flipped(self.inp))
        connect(m, loader.wgt, flipped(self.wgt))

        # Fetch dispatches only LOADs to this module.
        order.connect_unit(m, decoder, loader, isa.Opcode.LOAD)
        m.d.comb += [loader.bases.eq(self.bases), self.moved.eq(loader.moved)]
        return m
