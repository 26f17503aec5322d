"""The core: the four modules, their instruction queues, and the tokens between them."""

from typing import Any, NamedTuple

from amaranth.hdl import Cat, Const, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from . import isa
from .bus.axi import ReadArbiter, ReadSignature, WriteSignature
from .clock_groups import ONE_CLOCK, ClockGroups
from .compute import Compute, Unit
from .config import Config
from .counters.activity import Activity
from .counters.bank import CounterBank
from .counters.events import burst_events
from .dma.transfer import Bases
from .fetch import Fetch
from .instructions import InstructionQueues
from .interfaces import ADDRESS_WIDTH, INDEX_WIDTH, Limits
from .load import Load
from .microarchitecture import Microarchitecture
from .queues.queue import TokenCounter
from .registers import COUNTER_WIDTH, COUNTERS
from .scratchpad import geometry
from .store import Store

TIMEOUT_WIDTH = 32


class FaultReport(data.Struct):
    """Why a run failed: `isa.Cause` (0: no fault), `isa.Module`, instruction index."""

    cause: 3
    module: 2
    index: INDEX_WIDTH


class TokensLeft(data.StructLayout):
    """Tokens left in the queues at the end of a run."""

    def __init__(self) -> None:
        super().__init__(
            {isa.queue_name(queue): range(isa.TOKEN_LIMIT + 1) for queue in isa.TOKEN_QUEUES}
        )


class Core(wiring.Component):
    """Runs a program, from ``launch`` to ``done``.

    A run ends when each module is done, waits for another module, or has stopped at a fault, and no
    memory access is in flight. The program has then finished, failed at the faulty instruction with
    the lowest index, or deadlocked. Deadlocks are detected from the state of the modules, without a
    timer. Between runs everything except memories is held in reset.

    ``stop`` ends a run early: no further bursts start, and the run ends when those in flight are
    complete. When memory does not answer for ``timeout`` cycles while an access is in flight, the
    run ends with a fault, and the core is ``draining`` until memory has answered.

    Timing: fetch starts in the cycle after ``launch``, which is ignored while the core is busy or
    draining. ``fault`` and ``tokens`` are valid in the cycle of ``done``. ``clear`` ends a run
    immediately and without ``done``.

    Ports
    -----
    insn_addr, insn_count, bases, limits : of the program; stable during a run
    timeout : in cycles, 0 disables it; may change during a run
    read, write : the memory
    busy : from the cycle after ``launch`` up to ``done``
    held : the modules are in reset
    done : high for one cycle when the run ends
    fault : why the run failed, or cause 0. With ``stopped``: cause 0 and the lowest instruction
        that had not retired and did not wait for another module
    tokens : tokens left in the queues
    counter_index, counter_value : one of `registers.COUNTERS`, complete when ``counters_ready``,
        which is also high while a program runs
    activity : activity of the modules
    """

    # A token pushed in one cycle is visible in the next, and the module that it wakes is not quiet
    # then: two cycles would suffice.
    _QUIET_CYCLES = 3

    def __init__(
        self,
        config: Config,
        groups: ClockGroups = ONE_CLOCK,
        choices: Microarchitecture | None = None,
    ) -> None:
        self._config = config
        self._groups = groups
        self._choices = choices or Microarchitecture.of(config)
        bus = 8 * config.bus_bytes
        super().__init__(
            {
                "clear": In(1),
                "launch": In(1),
                "stop": In(1),
                "timeout": In(TIMEOUT_WIDTH),
                "insn_addr": In(ADDRESS_WIDTH),
                "insn_count": In(INDEX_WIDTH),
                "bases": In(Bases),
                "limits": In(Limits()),
                "read": Out(ReadSignature(bus)),
                "write": Out(WriteSignature(bus)),
                "busy": Out(1),
                "held": Out(1),
                "draining": Out(1),
                "done": Out(1),
                "stopped": Out(1),
                "fault": Out(FaultReport),
                "tokens": Out(TokensLeft()),
                "counter_index": In(range(len(COUNTERS))),
                "counter_value": Out(COUNTER_WIDTH),
                "counters_ready": Out(1),
                "activity": Out(Activity(len(Unit) - 1)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        running = Signal()
        machine = Module()
        # One inverted signal: inverting it at each use would cost an inverter per flip-flop.
        held = self.held
        m.d.comb += held.eq(~running)
        m.submodules.machine = ResetInserter(dict.fromkeys(self._groups.domains, held))(machine)
        parts = self._add_modules(machine)
        self._connect_queues(machine, parts)

        # The end of a run.
        fetch, load, compute, store = parts.fetch, parts.load, parts.compute, parts.store
        quiet = Signal()
        m.d.sync += quiet.eq(
            (fetch.quiet | fetch.waiting)
            & parts.queues.settled
            & load.status.quiet
            & compute.status.quiet
            & store.status.quiet
        )
        quiet_cycles = Signal(range(self._QUIET_CYCLES + 1))
        started = Signal()
        with m.If(~running | ~quiet | ~started):
            m.d.sync += quiet_cycles.eq(0)
        with m.Elif(quiet_cycles != self._QUIET_CYCLES):
            m.d.sync += quiet_cycles.eq(quiet_cycles + 1)
        m.d.sync += started.eq(running)
        # Tokens that FINISH itself pushes are counted one cycle after it retires.
        finished = Signal()
        m.d.sync += finished.eq(running & compute.finished)

        # A stopped run ends when memory has answered; ``reported`` marks a run that ended by
        # timeout, without waiting for memory.
        stop, stopping, reported = Signal(), Signal(), Signal()
        drained, silent, expired = Signal(), Signal(), Signal()
        stopped_before, complete = Signal(), Signal()
        m.d.sync += [stopped_before.eq(stop), expired.eq(silent)]
        m.d.comb += [
            stop.eq(self.stop & running & ~stopping),
            drained.eq(parts.arbiter.idle & store.drained),
            complete.eq(drained & ~stopped_before),
            parts.arbiter.stop.eq(stopping),
            store.stop.eq(stopping),
            fetch.start.eq(running & ~started),
            self.busy.eq(running & ~reported),
            self.draining.eq(reported),
            self.stopped.eq(stopping & ~expired),
            self.done.eq(
                self.busy
                & (
                    expired
                    | Mux(stopping, complete, finished | (quiet_cycles == self._QUIET_CYCLES))
                )
            ),
        ]
        with m.If(self.launch & ~running):
            m.d.sync += running.eq(1)
        with m.If(stop):
            m.d.sync += stopping.eq(1)
        with m.If(self.done | (stopping & complete) | self.clear):
            m.d.sync += [running.eq(0), stopping.eq(0), reported.eq(0)]
        with m.If(expired & ~self.clear):
            m.d.sync += [running.eq(1), stopping.eq(1), reported.eq(1)]
        self._add_watchdog(m, self.busy & ~drained & ~expired, silent)
        lowest = self._first_fault(m, parts, stop, silent)
        place = Signal(FaultReport)
        with m.If(stopped_before):
            m.d.sync += [place.eq(lowest), place.cause.eq(0)]
        with m.If(self.stopped):
            m.d.comb += self.fault.eq(place)
        with m.Elif(expired | ~finished):
            m.d.comb += self.fault.eq(lowest)
        for module in ("fetch", "load", "compute", "store"):
            connect(m, getattr(parts, module).activity, flipped(getattr(self.activity, module)))
        if self._config.counters:
            self._add_counters(m, parts, running)
        else:
            m.d.comb += self.counters_ready.eq(1)
        return m

    def _add_modules(self, machine: Module) -> "_Parts":
        config, groups, choices = self._config, self._groups, self._choices
        machine.submodules.fetch = fetch = Fetch(config, choices)
        machine.submodules.load = load = Load(config, groups, choices)
        machine.submodules.compute = compute = Compute(config, groups, choices)
        machine.submodules.store = store = Store(config, groups, choices)
        machine.submodules.queues = queues = InstructionQueues(config, choices)
        machine.submodules.arbiter = arbiter = ReadArbiter(8 * config.bus_bytes)
        connect(machine, fetch.read, arbiter.fetch)
        connect(machine, load.read, arbiter.load)
        connect(machine, compute.read, arbiter.compute)
        connect(machine, arbiter.bus, flipped(self.read))
        connect(machine, store.write, flipped(self.write))
        connect(machine, compute.out_read, store.scratchpad)
        for memory, fill, read in (
            (isa.Memory.INP, load.inp, compute.inp_read),
            (isa.Memory.WGT, load.wgt, compute.wgt_read),
        ):
            scratchpad = geometry(config, memory).scratchpad(read_elements=(len(read.data),))
            machine.submodules[memory.name.lower()] = scratchpad
            if config.forward and memory is isa.Memory.INP:
                # Writes of bus data are never stalled; FORWARD is held instead.
                loads = fill.enable.any()
                machine.d.comb += [
                    Value.cast(getattr(scratchpad.write, name)).eq(
                        Mux(
                            loads,
                            Value.cast(getattr(fill, name)),
                            Value.cast(getattr(store.inp, name)),
                        )
                    )
                    for name in ("enable", "lanes", "index", "data")
                ]
                machine.d.comb += store.hold.eq(loads)
            else:
                connect(machine, fill, scratchpad.write)
            connect(machine, read, scratchpad.read0)
        machine.d.comb += [
            fetch.insn_addr.eq(self.insn_addr),
            fetch.insn_count.eq(self.insn_count),
            queues.limits.eq(self.limits),
            load.bases.eq(self.bases),
            compute.bases.eq(self.bases),
            store.base.eq(self.bases.out),
        ]
        return _Parts(fetch, load, compute, store, queues, arbiter)

    def _connect_queues(self, machine: Module, parts: "_Parts") -> None:
        """Connect instruction queues and token queues."""
        queues = parts.queues
        for module, component in parts.modules.items():
            name = module.name.lower()
            connect(machine, getattr(parts.fetch, name), getattr(queues, name))
            connect(machine, getattr(queues, f"{name}_out"), component.insn)
            machine.d.comb += getattr(queues, f"{name}_retire").eq(component.status.retire)
        machine.d.comb += parts.compute.others_retired.eq(queues.load_empty & queues.store_empty)
        for queue in isa.TOKEN_QUEUES:
            giver, taker = queue
            name = isa.queue_name(queue)
            machine.submodules[name] = counter = TokenCounter()
            give = getattr(parts.modules[giver], f"to_{taker.name.lower()}")
            take = getattr(parts.modules[taker], f"from_{giver.name.lower()}")
            machine.d.comb += [
                counter.give.eq(give.give),
                give.full.eq(counter.full),
                counter.take.eq(take.take),
                take.available.eq(counter.available),
                self.tokens[name].eq(counter.count),
            ]

    def _first_fault(self, m: Module, parts: "_Parts", stop: Signal, silent: Signal) -> data.View:
        """The fault with the lowest instruction index, or else a deadlock. When a run ends early,
        an instruction in execution counts like a fault.

        The states of the modules are registered and compared one cycle later.
        """
        ends_early = stop | silent
        states = []
        for module, component in parts.modules.items():
            status, fault = component.status, component.fault
            early = Mux(stop, status.executing, status.accessing)
            states.append(
                _State(
                    module,
                    fault.valid | Mux(ends_early, early, status.waiting & status.overflowing),
                    status.waiting,
                    status.index,
                    Mux(
                        fault.valid,
                        fault.cause,
                        Mux(ends_early, int(isa.Cause.TIMEOUT), int(isa.Cause.TOKEN_OVERFLOW)),
                    ),
                )
            )
        fetch = parts.fetch
        fault = fetch.fault
        states.append(
            _State(
                isa.Module.FETCH,
                fault.valid | stop | (silent & fetch.accessing),
                Const(0),
                fetch.index,
                Mux(fault.valid, fault.cause, int(isa.Cause.TIMEOUT)),
            )
        )
        return _lowest(m, states)

    def _add_counters(self, m: Module, parts: "_Parts", running: Signal) -> None:
        fetch, load, compute, store = parts.fetch, parts.load, parts.compute, parts.store
        read, write = self.read, self.write
        read_ends = read.beat.valid & read.beat.ready & read.beat.payload.last
        write_ends = write.response.valid & write.response.ready
        events = fetch.events | load.events | compute.events | store.events
        events |= burst_events(m, "read", read.request, read_ends, self.held)
        events |= burst_events(m, "write", write.request, write_ends, self.held)
        events["load_and_gemm_busy"] = events["load_busy"] & events["gemm_busy"]
        counted = {counter.name: events[counter.name] for counter in COUNTERS}
        m.submodules.counters = counters = CounterBank(
            {name: len(event) for name, event in counted.items()}
        )
        m.d.comb += [
            *(getattr(counters, name).eq(event) for name, event in counted.items()),
            counters.clear.eq(self.launch & ~running),
            counters.counting.eq(running),
            counters.index.eq(self.counter_index),
            self.counter_value.eq(counters.value),
            self.counters_ready.eq(running | counters.settled),
        ]

    def _add_watchdog(self, m: Module, awaited: Value, silent: Signal) -> None:
        """Set ``silent`` when the bus has been idle for too long while an answer is ``awaited``."""
        silence = Signal(TIMEOUT_WIDTH)
        streams = (
            self.read.request,
            self.read.beat,
            self.write.request,
            self.write.beat,
            self.write.response,
        )
        moves = Cat(item.valid & item.ready for item in streams).any()
        m.d.sync += silence.eq(Mux(awaited & ~moves, silence + 1, 0))
        # Greater-or-equal, since software may lower the timeout while the bus is silent.
        m.d.comb += silent.eq(awaited & (self.timeout != 0) & (silence >= self.timeout))


class _Parts(NamedTuple):
    fetch: Fetch
    load: Load
    compute: Compute
    store: Store
    queues: InstructionQueues
    arbiter: ReadArbiter

    @property
    def modules(self) -> dict[isa.Module, Any]:
        """The modules that execute instructions."""
        return {
            isa.Module.LOAD: self.load,
            isa.Module.COMPUTE: self.compute,
            isa.Module.STORE: self.store,
        }


class _State(NamedTuple):
    """State of a module: either it has ``failed`` with ``cause``, or it is ``waiting`` for another
    module; ``index`` is its instruction in both cases.
    """

    module: isa.Module
    failed: Value
    waiting: Value
    index: Value
    cause: Value


def _lowest(m: Module, states: list[_State]) -> data.View:
    """Report of the previous cycle's states: the fault with the lowest index, else a deadlock at
    the lowest waiting instruction, else zeros.
    """
    any_failed, found_any = Signal(), Signal()
    # Pairs of a valid bit and a report.
    reports: list[tuple[Value, Any]] = []
    failures, stops = [], []
    for state in states:
        name = state.module.name.lower()
        failed, waited = Signal(name=f"{name}_failed"), Signal(name=f"{name}_waited")
        index, cause = Signal(INDEX_WIDTH, name=f"{name}_index"), Signal(3, name=f"{name}_cause")
        report = Signal(FaultReport, name=f"fault_{name}")
        m.d.sync += [
            failed.eq(state.failed),
            waited.eq(state.waiting),
            index.eq(state.index),
            cause.eq(state.cause),
        ]
        m.d.comb += [
            report.cause.eq(Mux(any_failed, cause, int(isa.Cause.DEADLOCK))),
            report.module.eq(state.module),
            report.index.eq(index),
        ]
        failures.append(failed)
        stops.append(failed | waited)
        reports.append((Mux(any_failed, failed, waited), report))
    m.d.comb += [any_failed.eq(Cat(failures).any()), found_any.eq(Cat(stops).any())]
    while len(reports) > 1:
        lower: list[tuple[Value, Any]] = []
        for (counts, one), (other_counts, other) in zip(reports[::2], reports[1::2], strict=False):
            report = Signal(FaultReport, name=f"fault_of_{len(reports)}_{len(lower)}")
            better = other_counts & (~counts | (other.index < one.index))
            m.d.comb += report.eq(Mux(better, other, one))
            lower.append((counts | other_counts, report))
        reports = lower + reports[2 * len(lower) :]
    ((_, lowest),) = reports
    # The valid bit arrives early, so only this multiplexer follows the comparison of indices.
    found = Signal(FaultReport, name="found")
    with m.If(found_any):
        m.d.comb += found.eq(lowest)
    return found
