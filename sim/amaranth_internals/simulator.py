"""Amaranth's simulator with an engine that is four times as fast.

`amaranth.sim` runs one process per fragment and clock domain. It evaluates all registers of a
fragment at every edge, and combinational logic whenever an input changes, in arbitrary order.
`LevelizedEngine` compiles the same statements, with Amaranth's compiler, in the smallest groups
that assign disjoint signals. A register group runs at an edge only if an input has changed since
the previous edge; a combinational group runs after the groups that drive its inputs.

Once an instant has settled, all signals have the same values as in `amaranth.sim`; glitches within
an instant are not visible.

Relies on the argument ``engine`` of `amaranth.sim.Simulator`, on `PySimEngine` and its state in
`amaranth.sim.pysim`, on testbenches and triggers in `amaranth.sim._async`, on the compiler
`amaranth.sim._pyrtl._FragmentCompiler`, and on the statements and fragments of `amaranth.hdl`.

Why: tests of modules and the device ``pysim`` need no C++ compiler (docs/decisions/0040).

Unnecessary with: a faster simulator in Amaranth, for instance amaranth-lang/amaranth#1630 (open),
processes that do not depend on the hierarchy of modules, or #324 (open), CXXRTL. Then `simulator`
becomes `amaranth.sim.Simulator` again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

from amaranth.hdl import Const, ShapeCastable, Signal, Value
from amaranth.hdl._ast import Assign, Slice, Switch, _StatementList
from amaranth.hdl._ir import Fragment
from amaranth.hdl._mem import MemoryInstance
from amaranth.lib import data
from amaranth.sim import Simulator, pysim
from amaranth.sim._async import (
    AsyncProcess,
    ChangedTrigger,
    SampleTrigger,
    TestbenchContext,
    TickTrigger,
)
from amaranth.sim._pyrtl import _FragmentCompiler

from amaranth_vta.collector import collector_paused

from .layout_values import Encoder, encoder

_Run = Callable[[], None]


def simulator(component: Any) -> Simulator:
    """A simulator for ``component`` that uses `LevelizedEngine`."""
    with collector_paused():
        return Simulator(component, engine=LevelizedEngine)


def remove_testbenches(simulation: Simulator) -> None:
    """Return a `simulator` to its initial state, with its clocks and without testbenches."""
    simulation._engine.remove_testbenches()
    simulation.reset()


class _Group(NamedTuple):
    """A compiled group of statements. Signals and memories are slots of the engine's state."""

    run: _Run
    inputs: set[int]
    outputs: set[int]


class _Registers:
    """Register groups of a clock domain."""

    def __init__(self) -> None:
        self.all: list[_Run] = []
        # Groups with Print or Assert statements, which run at every edge.
        self.always: list[_Run] = []
        # Groups that run at the next edge.
        self.due: set[_Run] = set()


class _SignalState(pysim._PySignalState):
    """A signal, and the groups that it wakes: ``stale`` are bits as in `_State`, ``due`` pairs of a
    set and the register groups that are added to it.
    """

    __slots__ = ("due", "stale")

    def __init__(self, signal: Any, pending: set[Any]) -> None:
        super().__init__(signal, pending)
        self.stale = 0
        self.due: list[tuple[set[_Run], tuple[_Run, ...]]] = []

    def update(self: Any, value: int, mask: int = -1) -> None:
        if mask != -1:
            value = (self.next & ~mask) | (value & mask)
        if self.next != value:
            self.next = value
            self.pending.add(self)


class _State(pysim._PyEngineState):
    """Records in ``inputs``, while that is a set, the signals and memories that a compiled process
    waits for. Bit n of ``stale``: the combinational group at position n in topological order must
    run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inputs: set[int] | None = None
        self.stale = 0

    def get_signal(self, signal: Any) -> int:
        slot: int | None = self.signals.get(signal)
        if slot is None:
            slot = self.signals[signal] = len(self.slots)
            self.slots.append(_SignalState(signal, self.pending))
        return slot

    def add_signal_waker(self, signal: Any, waker: Any) -> None:
        if self.inputs is None:
            super().add_signal_waker(signal, waker)
        else:
            self.inputs.add(self.get_signal(signal))

    def add_memory_waker(self, memory: Any, waker: Any) -> None:
        if self.inputs is None:
            super().add_memory_waker(memory, waker)
        else:
            self.inputs.add(self.get_memory(memory))

    def commit(self, changed: set[Any] | None = None) -> bool:
        converged = True
        for state in self.pending:
            if type(state) is not _SignalState:
                if changed is not None:
                    changed.update(pysim._PyMemoryChange(state, row) for row in state.write_queue)
                converged &= not state.commit()
                continue
            if changed is not None:
                changed.add(state)
            before, after = state.curr, state.next
            if before != after:
                converged = False
                self.stale |= state.stale
                for registers, runs in state.due:
                    registers.update(runs)
                if state.wakers:
                    pysim._run_wakers(state.wakers, before, after)
                state.curr = after
        self.pending.clear()
        return converged


class _TriggerState(pysim._PyTriggerState):
    """Looks up once how to sample each value, however often a testbench awaits the triggers."""

    def compute_result(self) -> None:
        combination, engine = self._combination, self._engine
        samples = vars(combination).get("samples")
        if samples is None:
            samples = combination.samples = [_sample(engine, t) for t in combination._triggers]
        result = []
        for trigger, state, from_bits in samples:
            if state is not None:
                value = state.curr
            elif isinstance(trigger, SampleTrigger):
                value = engine.get_value(trigger.value)
            else:
                value = trigger in self._triggers_hit
            result.append(value if from_bits is None else from_bits(value))
        self._result = tuple(result)


def _sample(engine: LevelizedEngine, trigger: Any) -> tuple[Any, Any, Any]:
    """The trigger, the state of the signal that it samples, if it samples one, and the function
    that converts the bits to the result.
    """
    if not isinstance(trigger, SampleTrigger | ChangedTrigger):
        return trigger, None, None
    state = engine.signal_state(trigger.value) if type(trigger.value) is Signal else None
    is_castable = isinstance(trigger.shape, ShapeCastable)
    return trigger, state, trigger.shape.from_bits if is_castable else None


class _Tick(TickTrigger):
    """Collects its triggers once, however often a testbench awaits it."""

    def sample(self, *exprs: Any) -> TickTrigger:
        return _Tick(
            self._engine, self._process, domain=self._domain, sampled=(*self._sampled, *exprs)
        )

    @cached_property
    def _collected(self) -> Any:
        return super()._collect_trigger()

    def _collect_trigger(self) -> Any:
        return self._collected


class _Context(TestbenchContext):
    """Makes one tick per domain, and sets signals and views without making constants of values."""

    def __init__(self, *details: Any) -> None:
        super().__init__(*details)
        self._ticks: dict[Any, _Tick] = {}
        # By the identity of the layout, which comes first.
        self._encoders: dict[int, tuple[Any, Encoder]] = {}

    def tick(self, domain: Any = "sync", *, context: Any = None) -> TickTrigger:
        if (domain, context) not in self._ticks:
            tick = super().tick(domain, context=context)
            self._ticks[domain, context] = _Tick(self._engine, self._process, domain=tick._domain)
        return self._ticks[domain, context]

    def set(self, expr: Any, value: Any) -> None:
        if type(expr) is Signal and isinstance(value, int):
            self._engine.set_value(expr, value)
            self._engine.step_design()
        elif type(expr) is data.View and isinstance(value, dict | list):
            try:
                bits = self._encoder(expr.shape())(value)
            except (KeyError, TypeError):
                super().set(expr, value)
            else:
                self._engine.set_value(expr, bits)
                self._engine.step_design()
        else:
            super().set(expr, value)

    def _encoder(self, layout: Any) -> Encoder:
        if id(layout) not in self._encoders:
            self._encoders[id(layout)] = layout, encoder(layout)
        return self._encoders[id(layout)][1]


class _Testbench(AsyncProcess):
    context: Any

    def reset(self) -> None:
        self.context = _Context(self.context._design, self.context._engine, self)
        super().reset()


class LevelizedEngine(pysim.PySimEngine):
    """An ``engine`` for `amaranth.sim.Simulator`."""

    def __init__(self, design: Any) -> None:
        self._design = design
        self._state = _State()
        # By the identity of the signal, which its state keeps alive.
        self._signal_states: dict[int, Any] = {}
        # Clocks, and coroutines that drive signals.
        self._processes: set[Any] = set()
        self._testbenches: list[Any] = []
        self._delta_cycles = 0
        self._vcd_writers: list[Any] = []
        self._active_triggers: set[Any] = set()
        self._domains: dict[Any, _Registers] = {}
        # Register groups triggered by a clock edge and not yet run.
        self._clocked: set[_Run] = set()
        combinational = []
        wakes: dict[int, tuple[list[int], dict[_Registers, list[_Run]]]] = {}
        for fragment in _fragments(design.fragment):
            for part, domain in _parts(fragment):
                group = self._compile(part, domain)
                if domain == "comb":
                    combinational.append(group)
                    continue
                registers = self._registers(part.domains[domain])
                registers.all.append(group.run)
                if not _splits(part.statements.get(domain, ())):
                    registers.always.append(group.run)
                # Outputs wake the group too, since a testbench may overwrite them.
                for slot in group.inputs | group.outputs:
                    runs = wakes.setdefault(slot, ([], {}))[1]
                    runs.setdefault(registers, []).append(group.run)
        self._levels: list[_Run] = []
        for level, group in enumerate(_levelized(combinational)):
            self._levels.append(group.run)
            for slot in group.inputs:
                wakes.setdefault(slot, ([], {}))[0].append(level)
        for slot, (levels, runs) in wakes.items():
            self._wake(slot, sum(1 << level for level in levels), runs)
        self._wakers = [len(slot.wakers) for slot in self._state.slots]
        self._run_all()

    def reset(self) -> None:
        super().reset()
        self._run_all()

    def remove_testbenches(self) -> None:
        """Remove all testbenches and their pending triggers; `reset` has to follow."""
        self._testbenches.clear()
        self._active_triggers.clear()
        for slot, state in enumerate(self._state.slots):
            # Slots of signals that only testbenches use come last.
            del state.wakers[self._wakers[slot] if slot < len(self._wakers) else 0 :]
        self._delta_cycles = 0

    def add_trigger_combination(self, combination: Any, *, oneshot: bool) -> _TriggerState:
        return _TriggerState(self, combination, self._active_triggers, oneshot=oneshot)

    def add_async_testbench(self, simulator: Any, process: Any, *, background: bool) -> None:
        testbench = _Testbench(self._design, self, process, testbench=True, background=background)
        self._testbenches.append(testbench)

    def get_value(self, expr: Any) -> int:
        value = Value.cast(expr)
        if type(value) is Signal:
            return self.signal_state(value).curr
        if type(value) is Slice:
            return self.get_value(value.value) >> value.start & ((1 << len(value)) - 1)
        if type(value) is Const:
            return value.value
        return super().get_value(value)

    def set_value(self, expr: Any, value: int) -> None:
        target = signal = Value.cast(expr)
        start = 0
        if type(target) is Slice:
            signal, start = target.value, target.start
        if type(signal) is Signal and not signal._signed:
            state = self.signal_state(signal)
            if not state.is_comb:
                mask = (1 << len(target)) - 1
                state.update((value & mask) << start, mask << start)
                return
        super().set_value(target, value)

    def signal_state(self, signal: Signal) -> Any:
        state = self._signal_states.get(id(signal))
        if state is None:
            state = self._state.slots[self._state.get_signal(signal)]
            self._signal_states[id(signal)] = state
        return state

    def step_design(self) -> None:
        state, levels = self._state, self._levels
        pending, commit = state.pending, state.commit
        # A testbench that sets a signal to its value changes nothing.
        converged = not (
            pending
            or state.stale
            or self._clocked
            or self._active_triggers
            or any(process.runnable for process in self._processes)
        )
        while not converged:
            changed: set[Any] | None = set() if self._vcd_writers else None
            for trigger in self._active_triggers:
                trigger.run()
            self._active_triggers.clear()
            for process in self._processes:
                if process.runnable:
                    process.runnable = False
                    process.run()
            for run in self._clocked:
                run()
            self._clocked.clear()
            converged = commit(changed)
            while state.stale:
                first = state.stale & -state.stale
                state.stale ^= first
                levels[first.bit_length() - 1]()
                if pending and not commit(changed):
                    converged = False
            if changed is not None:
                self._write_waves(changed)
            self._delta_cycles += 1

    def _write_waves(self, changed: set[Any]) -> None:
        for writer in self._vcd_writers:
            now = self._now_plus_deltas(writer.fs_per_delta)
            for change in changed:
                if isinstance(change, pysim._PyMemoryChange):
                    writer.update_memory(now, change.state.memory, change.addr)
                else:
                    writer.update_signal(now, change.signal)

    def _run_all(self) -> None:
        """Schedule every group."""
        self._state.stale = (1 << len(self._levels)) - 1
        self._clocked.clear()
        for registers in self._domains.values():
            registers.due.update(registers.all)

    def _compile(self, part: Fragment, domain: str) -> _Group:
        state = self._state
        state.inputs = set()
        (process,) = _FragmentCompiler(state)(part)
        statements = part.statements.get(domain, _StatementList())
        read, written = [], [statements._lhs_signals()]
        if domain != "comb":
            state.inputs.clear()  # the clock
            read.append(statements._rhs_signals())
            if part.domains[domain].rst is not None:
                read.append([part.domains[domain].rst])
        if isinstance(part, MemoryInstance):
            written += [port._data._lhs_signals() for port in part._read_ports]
            if domain != "comb":
                state.inputs.add(state.get_memory(part._data))
                values = [port._data for port in part._write_ports]
                for port in (*part._read_ports, *part._write_ports):
                    values += [port._addr, port._en]
                read += [value._rhs_signals() for value in values]
        inputs, state.inputs = state.inputs, None
        inputs.update(state.get_signal(signal) for signal in chain(*read))
        return _Group(process.run, inputs, {state.get_signal(signal) for signal in chain(*written)})

    def _registers(self, domain: Any) -> _Registers:
        if domain not in self._domains:
            registers = self._domains[domain] = _Registers()

            active = int(domain.clk_edge == "pos")

            def clocked(_before: int, after: int) -> bool:
                if after == active:
                    self._clocked.update(registers.due)
                    registers.due.clear()
                    registers.due.update(registers.always)
                return True

            def reset(_before: int, after: int) -> bool:
                if after:
                    self._clocked.update(registers.all)
                return True

            self._state.add_signal_waker(domain.clk, clocked)
            if domain.async_reset and domain.rst is not None:
                self._state.add_signal_waker(domain.rst, reset)
        return self._domains[domain]

    def _wake(self, slot: int, stale: int, runs: dict[_Registers, list[_Run]]) -> None:
        """Schedule groups when a signal or memory changes."""
        due = [(registers.due, tuple(each)) for registers, each in runs.items()]
        state = self._state.slots[slot]
        if type(state) is _SignalState:
            state.stale, state.due = stale, due
            return

        def written() -> bool:
            data = state.data
            if any(data[row] != value for row, value in state.write_queue.items()):
                self._state.stale |= stale
                for registers, each in due:
                    registers.update(each)
            return True

        state.add_waker(written)


def _fragments(fragment: Fragment) -> Iterator[Fragment]:
    yield fragment
    for inner, _, _ in fragment.subfragments:
        yield from _fragments(inner)


def _parts(fragment: Fragment) -> Iterator[tuple[Fragment, str]]:
    """Split a fragment into parts with one domain each that assign disjoint signals."""
    if isinstance(fragment, MemoryInstance):
        ports = (*fragment._read_ports, *fragment._write_ports)
        for domain in {*fragment.statements, *(port._domain for port in ports)}:
            memory = MemoryInstance(data=fragment._data)
            memory._read_ports = [p for p in fragment._read_ports if p._domain == domain]
            memory._write_ports = [p for p in fragment._write_ports if p._domain == domain]
            memory.domains = fragment.domains
            yield memory, domain
        return
    for domain, statements in fragment.statements.items():
        for group in _groups(list(_flat(statements))):
            part = Fragment()
            part.statements = {domain: group}
            part.domains = fragment.domains
            yield part, domain


def _flat(statements: Iterable[Any]) -> Iterator[Any]:
    for statement in statements:
        if isinstance(statement, list):
            yield from _flat(statement)
        else:
            yield statement


def _splits(statements: Iterable[Any]) -> bool:
    """Whether statements only assign signals, so that they can be split."""
    return all(
        isinstance(s, Assign)
        or (isinstance(s, Switch) and all(_splits(body) for _, body, _ in s.cases))
        for s in _flat(statements)
    )


def _groups(statements: list[Any]) -> list[_StatementList]:
    """Partition statements into the smallest groups that assign disjoint signals, in original
    order.
    """
    if not _splits(statements):
        return [_StatementList(statements)]
    # Per statement, the assigned signals by identity; ``parents`` is a union-find forest that joins
    # signals assigned by the same statement.
    sets: dict[int, set[int]] = {}
    parents: dict[int, int] = {}

    def root(signal: int) -> int:
        while (parent := parents.setdefault(signal, signal)) != signal:
            parents[signal] = signal = parents[parent]
        return signal

    def visit(statement: Any) -> set[int]:
        if isinstance(statement, Assign):
            signals = {id(signal) for signal in statement._lhs_signals()}
            for first, second in pairwise(signals):
                parents[root(first)] = root(second)
        else:
            bodies = (_flat(body) for _, body, _ in statement.cases)
            signals = {signal for inner in chain(*bodies) for signal in visit(inner)}
        sets[id(statement)] = signals
        return signals

    def only(body: Iterable[Any], group: int) -> _StatementList:
        kept = _StatementList()
        for s in _flat(body):
            if sets[id(s)] == {group}:
                kept.append(s)
            elif group in sets[id(s)]:
                cases = [(patterns, only(inner, group), loc) for patterns, inner, loc in s.cases]
                kept.append(Switch(s.test, cases, src_loc=s.src_loc))
        return kept

    for statement in statements:
        visit(statement)
    # From here on: per statement, the groups of its signals.
    sets = {key: {root(signal) for signal in signals} for key, signals in sets.items()}
    members: dict[int, list[Any]] = {}
    for statement in statements:
        for group in sets[id(statement)]:
            members.setdefault(group, []).append(statement)
    return [only(body, group) for group, body in members.items()]


def _levelized(groups: Sequence[_Group]) -> list[_Group]:
    """Sort groups topologically; combinational loops are iterated until they settle."""
    drivers: dict[int, list[int]] = {}
    for n, group in enumerate(groups):
        for slot in group.outputs:
            drivers.setdefault(slot, []).append(n)

    def sources(n: int) -> Iterator[int]:
        return chain.from_iterable(drivers.get(slot, ()) for slot in groups[n].inputs)

    ordered: list[_Group] = []
    seen: set[int] = set()
    for first in range(len(groups)):
        path = [] if first in seen else [(first, sources(first))]
        seen.add(first)
        while path:
            n, ahead = path[-1]
            source = next((m for m in ahead if m not in seen), None)
            if source is None:
                ordered.append(groups[n])
                path.pop()
            else:
                seen.add(source)
                path.append((source, sources(source)))
    return ordered
