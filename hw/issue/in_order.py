"""Issue and retirement logic shared by load, compute and store: tokens, order and faults."""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.counters.activity import ModuleActivity
from amaranth_vta.hw.dma.transfer import transfer
from amaranth_vta.hw.interfaces import (
    CheckedEntry,
    FaultPort,
    ModuleStatus,
    PopPort,
    PushPort,
    index_width,
    instruction_layout,
    is_illegal,
)
from amaranth_vta.hw.microarchitecture import Microarchitecture
from amaranth_vta.hw.queues.levels import next_count, next_exceeds
from amaranth_vta.hw.queues.queue import Queue
from amaranth_vta.hw.timing import INSTRUCTIONS_IN_FLIGHT

from .decode import Decoder


class InFlight(data.StructLayout):
    """An instruction that has issued or was rejected, and has not retired."""

    def __init__(self, config: Config, units: int) -> None:
        super().__init__(
            {
                "index": index_width(config),
                "unit": range(units + 1),
                "push_prev": 1,
                "push_next": 1,
                "cause": 3,
            }
        )


class ModuleSignature(wiring.Signature):
    """The common ports of load, compute and store; `InOrder` drives them.

    Members
    -------
    insn : instructions in stream order, accepted when they issue
    status, fault, activity : of `ModuleStatus`, `FaultPort` and `ModuleActivity`
    from_NAME, to_NAME : tokens of each neighbour
    """

    def __init__(self, module: isa.Module, units: int = 1) -> None:
        tokens: dict[str, Any] = {}
        for neighbour in isa.neighbours(module).values():
            name = neighbour.name.lower()
            tokens |= {f"from_{name}": Out(PopPort()), f"to_{name}": Out(PushPort())}
        super().__init__(
            {
                "insn": In(stream.Signature(CheckedEntry)),
                "status": Out(ModuleStatus()),
                "activity": Out(ModuleActivity(units)),
                "fault": Out(FaultPort()),
                **tokens,
            }
        )


class InOrder(wiring.Component):
    """Issues the instructions of a module to its units, and retires them, both in order.

    An instruction issues when all tokens that it pops are available, its unit is ready, and the
    module permits it (``may_start``). It retires and pushes its tokens when its unit is done and
    everything older has retired; it stalls while a token queue is full. Rejected instructions take
    the same path, so a module stops at its first faulty instruction in stream order, after all
    older ones have retired.

    Timing: an instruction can issue in the cycle in which it is offered. It retires in the cycle in
    which its unit is done, or later; instructions that wait for its tokens can issue one cycle
    later. Throughput is one issue and one retirement per cycle.

    Parameters
    ----------
    module : the module that it is part of
    causes : per unit, the fault cause of its errors

    Ports
    -----
    (all of `ModuleSignature`)
    head : the next instruction, which the next six ports describe
    illegal : reject it; token flags towards a missing neighbour are detected here
    out_of_range : it would access elements beyond the depth of a scratchpad
    out_of_bounds : it would access DRAM beyond the limit of its memory
    unit : its unit: 1 to n, or 0 for none
    unit_ready : that unit can accept it
    may_start : it has no hazard with an older instruction or with another module
    start : it issues in this cycle
    begins : per unit, it accepts its next instruction in this cycle
    queued : per unit, instructions issued to it and not yet accepted
    pending : per unit, bit 0 for none: it has unretired instructions
    done, error : per unit, a pulse per completed instruction; after an error no instruction of that
        unit completes
    drained : the units have no memory access in flight
    """

    def __init__(
        self,
        config: Config,
        module: isa.Module,
        causes: Sequence[isa.Cause],
        choices: Microarchitecture | None = None,
    ) -> None:
        self._config = config
        self._choices = choices or Microarchitecture.of(config)
        self._module = module
        self._causes = causes
        units = len(causes)
        self._shared = ModuleSignature(module, units)
        super().__init__(
            {
                **self._shared.members,
                "head": Out(CheckedEntry),
                "illegal": In(1),
                "out_of_range": In(1),
                "out_of_bounds": In(1),
                "unit": In(range(units + 1)),
                "unit_ready": In(1),
                "may_start": In(1),
                "start": Out(1),
                "begins": In(units),
                "queued": In(data.ArrayLayout(range(INSTRUCTIONS_IN_FLIGHT + 1), units)),
                "pending": Out(units + 1),
                "done": In(units),
                "error": In(units),
                "drained": In(1),
            }
        )

    def connect(self, m: Module, component: Any, decoder: Decoder) -> None:
        """Connect the ports of `ModuleSignature` to ``component``, with its instructions passing
        through ``decoder``.
        """
        connect(m, flipped(component.insn), decoder.insn)
        decoded = decoder.decoded.payload
        m.d.comb += [
            self.insn.valid.eq(decoder.decoded.valid),
            self.insn.payload.eq(decoded.checked),
            decoder.decoded.ready.eq(self.insn.ready),
            self.unit.eq(decoded.unit),
            self.illegal.eq(decoded.illegal),
        ]
        for name in self._shared.members:
            if name != "insn":
                connect(m, flipped(getattr(component, name)), getattr(self, name))

    def connect_unit(self, m: Module, decoder: Decoder, unit: Any, opcode: isa.Opcode) -> None:
        """Issue all instructions, which have this opcode, to one `Loader` or `Storer`."""
        bits = decoder.insn.payload.entry.bits
        m.d.comb += [
            decoder.unit.eq(1),
            decoder.illegal.eq(is_illegal(self._config, opcode, bits)),
            self.out_of_range.eq(self.head.out_of_range),
            self.out_of_bounds.eq(self.head.out_of_bounds),
            self.unit_ready.eq(unit.command.ready),
            self.may_start.eq(1),
            unit.command.valid.eq(self.start),
            self.begins.eq(self.start),
            unit.command.payload.eq(transfer(self._config, decoder.decoded.payload)),
            self.done.eq(unit.done),
            self.error.eq(unit.error),
            self.drained.eq(unit.idle),
        ]

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.in_flight = in_flight = Queue(
            InFlight(self._config, len(self._causes)),
            INSTRUCTIONS_IN_FLIGHT,
            registered=self._choices.in_flight_register,
        )
        index = self.insn.payload.entry.index[: index_width(self._config)]
        # Clears the upper bits of an index: they are 0, but synthesis cannot see that through block
        # RAM.
        m.d.comb += [self.head.eq(self.insn.payload), self.head.entry.index.eq(index)]
        refused = Signal()
        issue, lacks_tokens, illegal = self._issue(m, in_flight, refused)
        retire, overflows, failed = self._retire(m, in_flight, refused)

        # Status: number of issued instructions, and units that work on them.
        issued = Signal(range(INSTRUCTIONS_IN_FLIGHT + 1))
        m.d.sync += issued.eq(next_count(issued, issue, retire))
        under_way = self._report_activity(m, in_flight, retire)
        starved, overflowing = Signal(), Signal()
        m.d.comb += [
            # The instruction lacks tokens, or waits for other modules.
            starved.eq(
                self.insn.valid
                & ~refused
                & ~illegal
                & (issued == 0)
                & (lacks_tokens | ~self.may_start)
            ),
            # Instructions issued to a failed unit, or to one that waits for it, never complete.
            overflowing.eq(overflows & Mux(failed, self.drained, ~under_way.any()) & ~issue),
            self.status.idle.eq(~self.insn.valid & (issued == 0)),
            self.status.waiting.eq((starved | overflowing) & ~self.fault.valid),
            self.status.overflowing.eq(overflowing),
            self.status.executing.eq(in_flight.o.valid & ~overflowing & ~self.fault.valid),
            self.status.accessing.eq(~self.drained),
            self.status.index.eq(
                Mux(in_flight.o.valid, in_flight.o.payload.index, self.head.entry.index)
            ),
            self.status.quiet.eq(
                self.status.idle | self.status.waiting | (self.fault.valid & self.drained)
            ),
        ]
        waits = self.insn.valid & ~refused & ~illegal & ~in_flight.o.valid
        for side, take in self._ports("from").items():
            lacks = getattr(self.activity, f"lacks_{side}")
            m.d.comb += lacks.eq(waits & self._flags[f"pop_{side}"] & ~take.available)
        return m

    @property
    def _flags(self) -> data.View:
        """Token flags of the next instruction, at the same position in every opcode."""
        return data.View(instruction_layout(self._config, isa.Opcode.FINISH), self.head.entry.bits)

    def _ports(self, direction: str) -> dict[str, Any]:
        """Token ports ``from`` or ``to`` the neighbours, by side."""
        return {
            side: getattr(self, f"{direction}_{neighbour.name.lower()}")
            for side, neighbour in isa.neighbours(self._module).items()
        }

    def _issue(self, m: Module, in_flight: Queue, refused: Signal) -> tuple[Signal, Value, Signal]:
        """Issue or reject the next instruction. Returns whether it does, whether the instruction
        lacks tokens, and whether it is illegal.
        """
        flags, takes = self._flags, self._ports("from")
        strangers = [side for side in ("prev", "next") if side not in takes]
        tokens, issue, cause, illegal = Signal(), Signal(), Signal(3), Signal()
        m.d.comb += illegal.eq(
            Cat(
                self.illegal,
                *(flags[f"{verb}_{side}"] for side in strangers for verb in ("pop", "push")),
            ).any()
        )
        with m.If(illegal):
            m.d.comb += cause.eq(isa.Cause.ILLEGAL_INSTRUCTION)
        with m.Elif(self.out_of_range):
            m.d.comb += cause.eq(isa.Cause.INDEX_OUT_OF_RANGE)
        with m.Elif(self.out_of_bounds):
            m.d.comb += cause.eq(isa.Cause.BUS_ERROR)
        cannot_start = self.out_of_range | self.out_of_bounds
        m.d.comb += [
            tokens.eq(
                Cat(~flags[f"pop_{side}"] | take.available for side, take in takes.items()).all()
            ),
            issue.eq(
                self.insn.valid
                & ~refused
                & in_flight.i.ready
                & (illegal | (tokens & (cannot_start | (self.unit_ready & self.may_start))))
            ),
            self.insn.ready.eq(issue),
            self.start.eq(issue & (cause == 0)),
            *(
                take.take.eq(issue & ~illegal & flags[f"pop_{side}"])
                for side, take in takes.items()
            ),
            in_flight.i.valid.eq(issue),
            in_flight.i.payload.index.eq(self.head.entry.index),
            in_flight.i.payload.unit.eq(self.unit),
            in_flight.i.payload.push_prev.eq(flags.push_prev),
            in_flight.i.payload.push_next.eq(flags.push_next),
            in_flight.i.payload.cause.eq(cause),
        ]
        with m.If(issue):
            m.d.sync += refused.eq(cause != 0)
        return issue, ~tokens, illegal

    def _retire(self, m: Module, in_flight: Queue, refused: Signal) -> tuple[Signal, Value, Value]:
        """Retire the oldest instruction. Returns whether it does, whether only a full token queue
        prevents it, and whether a unit has failed.
        """
        oldest, gives = in_flight.o.payload, self._ports("to")
        done, failure, failed = self._completion(m, in_flight)
        full, retire = Signal(), Signal()
        m.d.comb += [
            # After a fault nothing retires, so the faulty instruction remains the oldest.
            self.fault.index.eq(oldest.index),
            full.eq(Cat(oldest[f"push_{side}"] & give.full for side, give in gives.items()).any()),
            retire.eq(in_flight.o.valid & done & ~full & ~self.fault.valid),
            in_flight.o.ready.eq(retire),
            self.status.retire.eq(retire),
            *(give.give.eq(retire & oldest[f"push_{side}"]) for side, give in gives.items()),
        ]
        with m.If(in_flight.o.valid & (failure != 0) & ~self.fault.valid):
            m.d.sync += [
                self.fault.valid.eq(1),
                self.fault.cause.eq(failure),
                refused.eq(1),
            ]
        return retire, in_flight.o.valid & done & full, failed

    def _report_activity(self, m: Module, in_flight: Queue, retire: Signal) -> Value:
        """Drive the activity; returns, per unit, whether it has instructions in progress or has
        failed.
        """
        oldest, activity = in_flight.o.payload, self.activity
        under_way = []
        m.d.comb += [
            activity.index.eq(self.head.entry.index),
            activity.unit.eq(self.unit),
            # No shift: shifting by an undefined amount is undefined in simulation.
            activity.starts.eq(
                Cat(self.start & (self.unit == unit) for unit in range(len(self._causes) + 1))
            ),
            activity.begins.eq(Cat(activity.starts[0], self.begins)),
            activity.ends.eq(Cat(retire & (oldest.unit == 0), self.done & ~self.error)),
        ]
        for unit in range(len(self._causes) + 1):
            count = Signal(range(INSTRUCTIONS_IN_FLIGHT + 1), name=f"pending_{unit}")
            change = count, activity.starts[unit], retire & (oldest.unit == unit)
            m.d.sync += [
                count.eq(next_count(*change)),
                self.pending[unit].eq(next_exceeds(0, *change)),
            ]
            if unit == 0:
                m.d.comb += activity.busy[0].eq(self.pending[0])
            else:
                given = Signal.like(count, name=f"given_{unit}")
                works = Signal(name=f"works_{unit}")
                change = given, activity.starts[unit], activity.ends[unit]
                m.d.sync += [given.eq(next_count(*change)), works.eq(next_exceeds(0, *change))]
                under_way.append(works)
                m.d.comb += activity.busy[unit].eq(given != self.queued[unit - 1])
        return Cat(under_way)

    def _completion(self, m: Module, in_flight: Queue) -> tuple[Signal, Signal, Value]:
        """Whether the oldest instruction in flight is done, its cause if it failed, and whether any
        unit has failed, at this instruction or a younger one.

        Units may complete instructions out of order with respect to other units; completions are
        counted until their instruction becomes the oldest.
        """
        oldest = in_flight.o.payload
        done, failure, errors = Signal(), Signal(3), []
        with m.If(oldest.cause != 0):
            m.d.comb += failure.eq(oldest.cause)
        with m.Elif(oldest.unit == 0):
            m.d.comb += done.eq(1)
        for number, cause in enumerate(self._causes):
            count = Signal(range(INSTRUCTIONS_IN_FLIGHT + 1), name=f"done_{number}")
            error = Signal(name=f"error_{number}")
            errors.append(error)
            mine, some = Signal(name=f"oldest_is_{number}"), Signal(name=f"some_done_{number}")
            succeeds = Signal(name=f"succeeds_{number}")
            m.d.comb += [
                mine.eq((oldest.unit == number + 1) & (oldest.cause == 0)),
                succeeds.eq(self.done[number] & ~self.error[number]),
            ]
            change = count, succeeds, mine & in_flight.o.valid & in_flight.o.ready
            m.d.sync += [count.eq(next_count(*change)), some.eq(next_exceeds(0, *change))]
            with m.If(self.done[number] & self.error[number]):
                m.d.sync += error.eq(1)
            with m.If(mine):
                m.d.comb += done.eq(some | succeeds)
                with m.If(error & ~some):
                    m.d.comb += failure.eq(cause)
        return done, failure, Cat(errors).any()
