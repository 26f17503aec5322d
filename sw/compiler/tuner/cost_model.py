"""Cost model: estimates the cycles of a schedule by walking its tiles through a machine model.

A schedule adds its tasks to a `Pipeline` in program order, tile by tile: loads, GEMM, the ALU's
epilogue, stores, and their dependences. `Pipeline.estimate` walks the tasks in time order: load,
compute and store overlap, each runs in order, and they share one bus with the fetch of their
instructions. Single cycles between instructions are not modelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

import numpy as np

from amaranth_vta.hw import timing
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import INSTRUCTION_BYTES
from amaranth_vta.hw.memory_timing import DDR

from .repeated_steps import RepeatedSteps

# The memory that schedules are optimized for: cycles from the request of a read to its first word,
# and from the last word of a write to its response; maximum bursts in flight, for reads and for
# writes each.
MEMORY_LATENCY = DDR.latency
_BURSTS_IN_FLIGHT = min(DDR.reads_outstanding, DDR.writes_outstanding, timing.BURSTS_IN_FLIGHT)
# Cycles to fetch instructions before the first data request, and cycles after the last response.
_LAUNCH_CYCLES = 60
_FINISH_CYCLES = 30
# Fraction of a layer's GEMM cycles in which the bus can prefetch for the next layer, after the
# first cycles, in which it transfers the layer's own operands.
_IDLE_BUS = 0.5
_BUSY_CYCLES = 2000
# Cycles from the end of a dependence to the first micro-op or request: for a dependence on the
# other unit of compute, and for one on another module, through a token.
_RESULT_CYCLES = timing.LATENCIES.issue_to_item + timing.GEMM_LATENCY
TOKEN_CYCLES = 15
# Overhead of a tile: an instruction waits for another module, and that one for it.
TILE_CYCLES = 2 * TOKEN_CYCLES
# Cycles from the last use of data in a scratchpad to the first use of the data that replaces it.
ROUND_TRIP_CYCLES = MEMORY_LATENCY + 2 * TOKEN_CYCLES
# ALU instructions that may be outstanding when GEMM issues: one executing, others in the queue.
OVERLAPPING_PASSES = 1 + timing.ALU_COMMANDS
# Cycles by which a schedule may take longer to save a cycle of the bus, which costs energy and,
# where machines share the bus, time.
_BUS_COST = 0.04
# Loads and stores take turns on the bus by bursts; shorter ones than this are moved together.
_LEAST_PIECE_WORDS = 64


@dataclass(frozen=True)
class Estimate:
    """Estimated cycles of a schedule, with a breakdown.

    ``gemm``, ``alu`` and ``bus`` are the busy cycles of each; ``bus`` includes the words that a
    preceding layer prefetches. ``fill`` are the cycles before the
    first multiplication, and ``drain`` the cycles after the last one.
    """

    cycles: float
    gemm: float
    alu: float
    bus: float
    fill: float
    drain: float

    @property
    def cost(self) -> float:
        """Cycles plus a small share of bus cycles; the tuner minimizes it."""
        return float(self.cycles + _BUS_COST * self.bus)

    @property
    def waits(self) -> float:
        """Cycles between fill and drain in which GEMM stalls on data, accumulators or the ALU."""
        return self.cycles - self.fill - self.gemm - self.drain

    @property
    def limit(self) -> str:
        """The bottleneck: the part with the most busy cycles."""
        return max(("gemm", "alu", "bus"), key=lambda part: float(getattr(self, part)))


class Task:
    """Work of ``amount`` cycles of a unit, or ``amount`` words on the bus, that starts once all
    tasks in ``after`` have ended; None is no dependence. Its ``instructions`` are fetched. The
    successor of a ``queued`` task need not wait for it to start. The bursts of a transfer take
    ``round_trips`` cycles if as many are in flight as can be; at least ``piece`` words move before
    another module takes its turn. ``end`` is in cycles from the launch, None while unknown;
    ``retired`` is when the task's module pushes its tokens, in program order.
    """

    __slots__ = (
        "after",
        "amount",
        "end",
        "instructions",
        "multiplies",
        "piece",
        "queued",
        "rate",
        "retired",
        "round_trips",
        "unit",
    )

    def __init__(
        self,
        unit: str,
        amount: float,
        after: Sequence[Task | None],
        rate: float = 1.0,
        multiplies: bool = True,
        queued: bool = False,
        instructions: int = 1,
    ) -> None:
        self.unit = unit
        self.amount = amount
        self.after = after
        self.rate = rate
        self.multiplies = multiplies
        self.queued = queued
        self.instructions = instructions
        self.round_trips = self.piece = 0.0
        self.end: float | None = None
        self.retired = 0.0


class Pipeline:
    """The tasks of a schedule, in program order."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._queues = {name: deque[Task]() for name in ("load", "compute", "store")}
        # Memoized words, rates and round trips of transfers, since most are alike.
        self._transfers: dict[tuple[int, int], tuple[int, float, float, int]] = {}
        # Bus cycles of the prefetched words.
        self._prefetched = 0.0
        # Functions that return the tasks that later steps may wait for.
        self.live: list[Callable[[], list[Task | None]]] = []

    def load(
        self,
        rows: int,
        row_bytes: int,
        after: Sequence[Task | None] = (),
        instructions: int = 1,
        prefetched: float = 0.0,
    ) -> Task:
        """Load inputs or weights, ``rows`` of ``row_bytes`` bytes; ``after`` are the last users of
        the data that is overwritten. A preceding layer loads up to ``prefetched`` bytes of them.
        """
        if prefetched:
            size = rows * row_bytes
            rows, row_bytes = 1, int(max(size - prefetched, 0))
            self._prefetched += bus_cycles(self._config, 1, size - row_bytes)
        return self._transfer("load", rows, row_bytes, after, instructions)

    def load_for_compute(self, size: int) -> Task:
        """Load ``size`` bytes of micro-ops or accumulators, without overlap with GEMM or ALU."""
        return self._transfer("compute", 1, size, (), 1)

    def reset(self, cycles: float, after: Sequence[Task | None]) -> Task:
        """Reset accumulators by GEMM."""
        return self._add("compute", Task("gemm", cycles, after, multiplies=False))

    def gemm(self, cycles: float, after: Sequence[Task | None]) -> Task:
        return self._add("compute", Task("gemm", cycles, after))

    def alu(self, uops: float, after: Sequence[Task | None], passes: int = 1) -> Task:
        """Run ``passes`` ALU instructions of ``uops`` micro-ops each. Later compute instructions
        can issue once the last of them are in the ALU's queue.
        """
        cycles = uops * self._config.lane_columns
        last = min(passes, OVERLAPPING_PASSES)
        first = passes - last
        if first:
            self._add("compute", Task("alu", first * cycles, after, instructions=first))
        task = Task("alu", last * cycles, after, queued=True, instructions=last)
        return self._add("compute", task)

    def store(
        self, rows: int, row_bytes: int, after: Sequence[Task | None], instructions: int = 1
    ) -> Task:
        return self._transfer("store", rows, row_bytes, after, instructions)

    def forward(self, vectors: int, after: Sequence[Task | None]) -> Task:
        """Forward ``vectors`` vectors, padding included, to the input scratchpad."""
        return self._add("store", Task("inp", vectors, after))

    def estimate(
        self,
        schedule: Iterable[None] = (),
        limit: float = inf,
        least: float = 0.0,
        steps: RepeatedSteps[Any] | None = None,
    ) -> Estimate:
        """Walk all tasks and return the estimate; to be called once.

        ``schedule`` may be a generator that adds tasks at each step, on demand. If it iterates over
        ``steps``, the walk skips repeated steps once the machine's state repeats too. ``least`` is
        a lower bound on the cycles that cannot overlap: all of GEMM, the ALU as far as it cannot
        overlap with GEMM, and the last store. The walk ends as soon as the schedule is certain to
        take ``limit`` cycles; the estimate then extrapolates the stalls in proportion.
        """
        walk = Walk(self._config, self._queues, iter(schedule), limit, least)
        if steps is not None:
            walk.repetitions = Repetitions(walk, steps, self.live)
        found = walk.estimate()
        # Breaks reference cycles, so that the tasks are freed without the garbage collector.
        self.live.clear()
        walk.repetitions = None
        return replace(found, bus=found.bus + self._prefetched)

    def _add(self, module: str, task: Task) -> Task:
        self._queues[module].append(task)
        return task

    def _transfer(
        self,
        module: str,
        rows: int,
        row_bytes: int,
        after: Sequence[Task | None],
        instructions: int,
    ) -> Task:
        known = self._transfers.get((rows, row_bytes))
        if known is None:
            row = -(-row_bytes // self._config.bus_bytes)
            words, cycles = rows * row, float(bus_cycles(self._config, rows, row_bytes))
            trips = round_trips(self._config, rows, row_bytes)
            piece = min(max(row, _LEAST_PIECE_WORDS), timing.BURST_BEATS)
            known = words, words / cycles if words else 1.0, trips, piece
            self._transfers[rows, row_bytes] = known
        words, rate, trips, piece = known
        task = Task("bus", words, after, rate, instructions=instructions)
        task.round_trips, task.piece = trips, piece
        self._queues[module].append(task)
        return task


def bus_share(config: Config) -> float:
    """The greatest fraction of cycles in which the memory transfers a word of the bus."""
    return (1 - DDR.refresh_stall / DDR.refresh_period) / (1 << config.log_word_cycles)


def bus_cycles(config: Config, rows: Any, row_bytes: Any) -> Any:
    """Cycles of a transfer from its first word to its last. Arguments are numbers or arrays."""
    row = -(-row_bytes // config.bus_bytes)
    # Short rows do not hide the latency: the bursts in flight have too few words.
    rounds, rest = divmod(rows - 1, _BURSTS_IN_FLIGHT)
    waits = rounds * (MEMORY_LATENCY + row) + (rest + 1) * row
    return np.maximum(rows * row / bus_share(config), waits)


def round_trips(config: Config, rows: Any, row_bytes: Any) -> Any:
    """Cycles of the bursts of a transfer if as many are in flight as can be."""
    row = -(-row_bytes // config.bus_bytes)
    return rows * (MEMORY_LATENCY + row) / _BURSTS_IN_FLIGHT


def hidden_bytes(config: Config, products: float) -> float:
    """Bytes of its first weights that a layer of ``products`` GEMM cycles need not wait for. The
    preceding layer, which is assumed to have as many, prefetches them while its bus is idle.
    """
    idle = _IDLE_BUS * max(products - _BUSY_CYCLES, 0.0)
    return idle * config.bus_bytes / (1 << config.log_word_cycles)


class _Module:
    """The load, compute or store module, with its tasks in order."""

    __slots__ = (
        "ahead",
        "at",
        "awaits",
        "free",
        "in_compute",
        "left",
        "queue",
        "round_trips",
        "task",
    )

    def __init__(self, name: str, queue: deque[Task]) -> None:
        self.queue = queue
        # Cycles from a request to its data.
        self.ahead = 0 if name == "store" else MEMORY_LATENCY
        self.in_compute = name == "compute"
        # Earliest cycle in which the module can begin its next task.
        self.free = float(_LAUNCH_CYCLES)
        self.task: Task | None = None
        # The cycle in which the current task can begin or continue; infinite if there is no task,
        # or if the cycle is still unknown.
        self.at = inf
        # A dependence of the current task whose end was unknown at the last look.
        self.awaits: Task | None = None
        # Words of the current task still to be transferred.
        self.left = 0.0
        # The cycle in which the round trips of all its bursts end, if always as many are in flight
        # as can be.
        self.round_trips = 0.0

    def look(self) -> None:
        """Determine when the current task can begin."""
        at = self.free
        assert self.task is not None
        for other in self.task.after:
            if other is None:
                continue
            end = other.end
            if end is None:
                self.awaits = other
                return
            own = self.in_compute and other.unit == "gemm"
            handed = end + _RESULT_CYCLES if own else other.retired + TOKEN_CYCLES
            if handed > at:
                at = handed
        self.awaits = None
        self.at = at


class Walk:
    """A walk over tasks in time order. Uses comparisons instead of min and max: the calls would
    double the run time.
    """

    def __init__(
        self,
        config: Config,
        queues: dict[str, deque[Task]],
        schedule: Iterator[None],
        limit: float,
        least: float,
    ) -> None:
        self.overlap = bool(config.overlap)
        # Cycles of the bus to fetch an instruction, to fetch as many as a module may have issued,
        # and to fetch what is due; negative while later instructions are prefetched.
        self.bus_share = bus_share(config)
        self.fetch_cycles = INSTRUCTION_BYTES / config.bus_bytes / self.bus_share
        self.most_prefetched = timing.INSTRUCTIONS_IN_FLIGHT * self.fetch_cycles
        self.fetches = 0.0
        # Fraction of a load's words that complete an element, which is then written.
        self.write_share = min(config.bus_bytes / config.inp.element_bytes, 1.0)
        self.modules = [_Module(name, queue) for name, queue in queues.items()]
        self.schedule: Iterator[None] | None = schedule
        self.repetitions: Repetitions | None = None
        # Cycles of the steps that were skipped: the other times are without them.
        self.skipped = 0.0
        # Cycles that the schedule is certain to take.
        self.certain = 0.0
        self.limit, self.least = limit, least + MEMORY_LATENCY + _FINISH_CYCLES
        # For each unit, the cycle from which it is free, then its busy cycles.
        self.gemm_free = self.alu_free = self.bus_free = 0.0
        self.gemm = self.alu = self.bus = 0.0
        self.fill: float | None = None
        # The cycle by which all tasks that compute has issued so far have retired.
        self.retired = 0.0

    def estimate(self) -> Estimate:
        modules = load, compute, store = self.modules
        for module in modules:
            self.proceed(module)
        for module in modules:
            if module.task is not None:
                module.look()
        end = 0.0
        while True:
            module = compute if compute.at < load.at else load
            if store.at < module.at:
                module = store
            task, at = module.task, module.at
            if at == inf:
                break
            assert task is not None
            module.at = inf
            if task.unit == "bus":
                # This module has the bus to itself until another module is ready.
                until = compute.at if compute.at < load.at else load.at
                self.move(module, task, at, store.at if store.at < until else until)
            elif task.unit == "inp":
                module.free = task.end = task.retired = at + self.forwarding(task, at, load)
            elif self.run(module, task, at):
                return self.projected()
            if task.end is None:
                module.at = module.free
                continue
            if task.end > end:
                end = task.end
            self.proceed(module)
            for other in modules:
                if other.at == inf and other.task is not None:
                    awaited = other.awaits
                    if awaited is None or awaited.end is not None:
                        other.look()
        assert all(module.task is None for module in modules)
        drain = end + _FINISH_CYCLES - self.gemm_free
        # Without the rounding errors, which would decide between schedules that take equally long.
        cycles = round(end + _FINISH_CYCLES + self.skipped, 3)
        return self._estimate(cycles, self.gemm, self.fill or 0.0, drain)

    def _estimate(self, cycles: float, gemm: float, fill: float, drain: float) -> Estimate:
        return Estimate(cycles, gemm, self.alu, self.bus, fill, drain)

    @property
    def done(self) -> float:
        """Cycles walked that cannot overlap: GEMM, plus the ALU if the two do not overlap."""
        return self.gemm + (0.0 if self.overlap else self.alu)

    @property
    def oldest(self) -> float:
        """The cycle before which no end of a task can delay a later one."""
        return min(module.free for module in self.modules) - max(TOKEN_CYCLES, _RESULT_CYCLES)

    def projected(self) -> Estimate:
        """An extrapolation from the part that was walked: all work, and stalls in proportion; at
        least ``limit``, which the schedule is certain to take.
        """
        fill = self.fill or 0.0
        waits = (self.gemm_free + self.skipped - fill - self.done) * self.least / self.done
        cycles = max(fill + self.least + waits, self.limit)
        return self._estimate(cycles, self.least, fill, 0.0)

    def proceed(self, module: _Module) -> None:
        """Take the next task of a module; the schedule adds tasks if the queue is empty."""
        queue = module.queue
        while not queue and self.schedule is not None:
            if self.repetitions is not None:
                self.repetitions.skip()
            try:
                next(self.schedule)
            except StopIteration:
                self.schedule = None
        if queue:
            module.task = task = queue.popleft()
            self.fetches += task.instructions * self.fetch_cycles
            module.left = task.amount
        else:
            module.task = None

    def move(self, module: _Module, task: Task, request: float, until: float) -> None:
        """Transfer the next piece of ``task``."""
        ahead, rate = module.ahead, task.rate
        if module.in_compute:
            request = max(request, self.gemm_free, self.alu_free)
        begin = request + ahead
        if begin < self.bus_free:
            begin = self.bus_free
        words = (until - begin) * rate
        if words < task.piece:
            words = task.piece
        if words > module.left:
            words = module.left
        # While short rows wait for the memory, other modules use the bus.
        ended, busy = begin + words / rate, words / self.bus_share
        # Instructions are fetched while the bus is idle, or else afterwards.
        late = self.fetches - (begin - self.bus_free)
        self.bus_free = begin + busy
        if late > 0:
            self.bus_free += late
            self.fetches = 0.0
        else:
            self.fetches = late if late > -self.most_prefetched else -self.most_prefetched
        self.bus += busy
        if module.left == task.amount:
            module.round_trips = max(module.round_trips, begin) + task.round_trips
        module.left -= words
        if module.left <= 0 and ended < module.round_trips - MEMORY_LATENCY:
            ended = module.round_trips - MEMORY_LATENCY
        module.free = request if request > ended - ahead else ended - ahead
        if module.left <= 0:
            # A store ends with its response.
            task.end = task.retired = ended if ahead else ended + MEMORY_LATENCY
            if module.in_compute:
                module.free = ended

    def forwarding(self, task: Task, at: float, load: _Module) -> float:
        """Cycles of a FORWARD that starts at ``at``; it stalls while a load writes to INP."""
        words = load.left if load.task is not None and load.at <= at + task.amount else 0.0
        return task.amount + min(words, task.amount) * self.write_share

    def run(self, module: _Module, task: Task, ready: float) -> bool:
        """Run a GEMM or ALU task. Returns whether the schedule is certain to reach the limit."""
        of_gemm = task.unit == "gemm"
        begin = self.gemm_free if of_gemm else self.alu_free
        if not self.overlap:
            begin = max(self.gemm_free, self.alu_free)
        if begin < ready:
            begin = ready
        if not (task.queued and self.overlap):
            module.free = begin
        task.end = end = begin + task.amount
        if end > self.retired:
            self.retired = end
        task.retired = self.retired
        if not of_gemm:
            self.alu_free = end
            self.alu += task.amount
            return False
        if task.multiplies and self.fill is None:
            # Excludes the resets before it.
            self.fill = begin - self.gemm
        self.gemm_free = end
        self.gemm += task.amount
        self.certain = end + self.skipped + self.least - self.done
        return self.certain >= self.limit


class _Seen(NamedTuple):
    """The state of a walk after ``at`` steps, relative to ``time``, and the work done by then.
    ``units`` is a part of the state; ``rest`` is the rest, None if it was not determined.
    """

    at: int
    time: float
    work: tuple[float, float, float]
    units: tuple[float, ...]
    rest: tuple[object, ...] | None


class Repetitions:
    """Lets ``walk`` skip steps that repeat, once the state of the machine repeats too.

    Skipping changes no state: all following times are relative to the same cycle. Each skipped
    period adds the work and the cycles of the period that repeats.
    """

    def __init__(
        self, walk: Walk, steps: RepeatedSteps[Any], live: Sequence[Callable[[], list[Task | None]]]
    ) -> None:
        self.walk, self.steps, self.live = walk, steps, live
        # The states seen last, per period in ascending order.
        self.seen: dict[int, _Seen | None] = dict.fromkeys(steps.periods)

    def skip(self) -> None:
        """Skip repetitions of the latest steps if the state is the same as a period earlier. The
        next step is about to be added.
        """
        found: _Seen | None = None
        for period, before in self.seen.items():
            times = self.steps.repetitions(period)
            if not times:
                continue
            now = found = found or self._state()
            if before is not None and before.at == now.at - period and before.units == now.units:
                # Most states differ in the units, which are fewer to compare.
                now = now._replace(rest=self._rest())
                if now.rest == before.rest:
                    self._repeat(before, now, times)
                    return
            self.seen[period] = now

    def _state(self) -> _Seen:
        walk = self.walk
        now, (load, compute, store) = walk.gemm_free, walk.modules
        times = walk.alu_free, walk.bus_free, load.free, compute.free, store.free
        units = *[round(time - now, 6) for time in times], len(load.queue), len(compute.queue)
        work = walk.gemm, walk.alu, walk.bus
        return _Seen(self.steps.at, now + walk.skipped, work, units, None)

    def _rest(self) -> tuple[object, ...]:
        """All else that the following tasks depend on."""
        walk, now = self.walk, self.walk.gemm_free
        tasks = [task for find in self.live for task in find()]
        times, state = [walk.retired], list[object]([round(walk.fetches, 6)])
        for module in walk.modules:
            times += (module.at, module.round_trips)
            state += (len(module.queue), module.task is None, round(module.left, 6))
            for task in filter(None, (module.task, *module.queue)):
                state += (task.unit, task.amount, task.round_trips, task.instructions)
                tasks += task.after
        for waited in tasks:
            if waited is not None and waited.end is not None:
                times += (waited.end, waited.retired)
            else:
                state.append(len(times))
        oldest = walk.oldest
        return *state, *[round(max(time, oldest) - now, 6) for time in times]

    def _repeat(self, before: _Seen, now: _Seen, times: int) -> None:
        """Skip up to ``times`` periods equal to the period from ``before`` to ``now``, fewer if the
        walk would reach its limit.
        """
        walk = self.walk
        cycles = now.time - before.time
        work = [end - begin for begin, end in zip(before.work, now.work, strict=True)]
        stalls = cycles - work[0] - (0.0 if walk.overlap else work[1])
        if walk.certain + (times + 1) * stalls >= walk.limit:
            times = max(int((walk.limit - walk.certain) / stalls) - 1, 0)
        self.steps.at += times * (now.at - before.at)
        walk.skipped += times * cycles
        walk.certain += times * stalls
        walk.gemm += times * work[0]
        walk.alu += times * work[1]
        walk.bus += times * work[2]
