"""Every run ends exactly once, whatever its modules and memory do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from amaranth.hdl import Assert, Assume, Cat, Cover, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from amaranth_vta.hw import core
from amaranth_vta.hw.config import PRESETS

from .proving import Proof

# Maximum cycles from the last event of a run to its end.
_TO_END = 7


class RunProperty(wiring.Component):
    """The core, with modules and memory replaced by arbitrary ones under two assumptions: modules
    have no open memory access while they are quiet, or once compute has retired FINISH; and modules
    that are quiet for two cycles remain so.

    Runs are launched and stopped in any cycle; modules become quiet and memory answers at any time,
    or never; the watchdog allows 1 to 3 silent cycles, or is off, and may change. Then a run ends
    within a few cycles after its modules are quiet, after FINISH has retired, after a stop without
    open accesses, and after the timeout. It ends once, and with an access open only by the
    watchdog; then it drains until no access is open, and no other run starts meanwhile. A launch
    starts a run if none is active.
    """

    def __init__(self, module: Any) -> None:
        class Hollow(module.Core):
            """The core with empty modules, which have only ports."""

            def _add_modules(self, machine: Module) -> Any:
                config = self._config
                components = {
                    "fetch": module.Fetch(config),
                    "load": module.Load(config),
                    "compute": module.Compute(config),
                    "store": module.Store(config),
                    "queues": module.InstructionQueues(config),
                    "arbiter": module.ReadArbiter(8 * config.bus_bytes),
                }
                parts = module._Parts(
                    **{
                        name: component.signature.create(path=(name,))
                        for name, component in components.items()
                    }
                )
                self.parts = parts
                machine.d.comb += [
                    self.write.response.ready.eq(1),
                    parts.fetch.insn_addr.eq(self.insn_addr),
                ]
                return parts

        self._core = Hollow(replace(PRESETS["tiny"], counters=0))
        super().__init__(
            {
                "launch": In(1),
                "stop": In(1),
                "timeout": In(2),
                "quiet": In(5),
                "finished": In(1),
                "open": In(2),
                "moves": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        core = self._core
        # Elaborated here, so that its parts exist.
        m.submodules.core = core.elaborate(platform)
        parts = core.parts
        open_, calm = self.open.any(), self.quiet.all()
        m.d.comb += [
            core.launch.eq(self.launch),
            core.stop.eq(self.stop),
            core.timeout.eq(self.timeout),
            core.write.response.valid.eq(self.moves),
            Cat(
                parts.fetch.quiet,
                parts.queues.settled,
                parts.load.status.quiet,
                parts.compute.status.quiet,
                parts.store.status.quiet,
            ).eq(self.quiet),
            parts.compute.finished.eq(self.finished),
            parts.arbiter.idle.eq(~self.open[0]),
            parts.store.drained.eq(~self.open[1]),
            Assume(~(calm | self.finished) | ~open_),
        ]
        self._check(m, open_, calm)
        return m

    def _check(self, m: Module, open_: Any, calm: Any) -> None:
        core = self._core
        # For how many cycles each reason to end has held in this run.
        quiet, finished, stopped, silent, overdue, answered = (
            Signal(5, name=f"{name}_for")
            for name in ("quiet", "finished", "stopped", "silent", "overdue", "answered")
        )
        stopping, was_busy, was_done, left_open, was_draining, launched = (
            Signal(name=name)
            for name in (
                "stopping",
                "was_busy",
                "was_done",
                "left_open",
                "was_draining",
                "launched",
            )
        )
        too_long = (self.timeout != 0) & (silent >= self.timeout)
        m.d.sync += [
            quiet.eq(Mux(core.busy & calm, quiet + 1, 0)),
            finished.eq(Mux(core.busy & (self.finished | (finished != 0)), finished + 1, 0)),
            stopping.eq(core.busy & (self.stop | stopping)),
            stopped.eq(Mux(core.busy & stopping & ~open_, stopped + 1, 0)),
            silent.eq(Mux(core.busy & open_ & ~self.moves, silent + 1, 0)),
            overdue.eq(Mux(core.busy & too_long, overdue + 1, 0)),
            answered.eq(Mux(core.draining & ~open_, answered + 1, 0)),
            was_busy.eq(core.busy),
            was_done.eq(core.done),
            left_open.eq(core.done & open_),
            was_draining.eq(core.draining & open_),
            launched.eq(self.launch & ~core.busy & ~core.draining),
        ]
        m.d.comb += [
            Assume((finished == 0) | ~open_),
            Assume((quiet < 2) | ~core.busy | calm),
        ]
        m.d.comb += [
            Assert(quiet <= _TO_END),
            Assert(stopping | (finished <= 2)),
            Assert(stopped <= 3),
            Assert(overdue <= 2),
            Assert(~core.done | core.busy),
            Assert(~was_done | ~core.busy),
            Assert(~(was_busy & ~core.busy) | was_done),
            Assert(~(core.done & open_) | (overdue != 0)),
            Assert(~(left_open | was_draining) | core.draining),
            Assert(answered <= 2),
            Assert(~core.draining | ~core.busy),
            Assert(core.busy | ~launched),
        ]
        ends, drained = Signal(3), Signal()
        with m.If(core.done):
            m.d.sync += ends.eq(ends + 1)
        with m.If(was_draining & (ends == 1)):
            m.d.sync += drained.eq(1)
        m.d.comb += Cover(drained & (ends == 3))


PROOFS = (
    Proof(
        name="ends of runs",
        modules=(core,),
        specify=RunProperty,
        mode="bmc",
        depth=20,
        bugs=(
            ("silence >= self.timeout", "silence == self.timeout"),
            ("complete.eq(drained & ~stopped_before)", "complete.eq(1)"),
            ("quiet_cycles == self._QUIET_CYCLES", "0"),
            ("(stopping & complete) | self.clear", "self.clear"),
            ("expired & ~self.clear", "0"),
            ("stop.eq(self.stop & running & ~stopping)", "stop.eq(0)"),
            ("awaited & ~moves, silence + 1, 0", "awaited, silence + 1, 0"),
        ),
    ),
)
