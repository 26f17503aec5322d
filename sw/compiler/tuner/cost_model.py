"""Cost model: the cycles of a schedule, by walking its tiles through a model of the machine.

A schedule adds its tasks to a `Pipeline` in program order, tile by tile: loads, GEMM, the ALU's
epilogue, stores, and their dependences. `Pipeline.estimate` walks through them in time order: load,
compute and store overlap, each in order, on one bus. Single cycles between instructions and the
refresh points of the memory are not modelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from amaranth_vta.hw import timing
from amaranth_vta.hw.config import Config

# The memory that schedules are chosen for, the `ddr` of the simulators: cycles from a request to
# its first word, reads in flight at a time, and the share of cycles in which it transfers a word.
READ_LATENCY = 48
READS_OUTSTANDING = timing.BURSTS_IN_FLIGHT
BUS_SHARE = 1 - 30 / 780
# Cycles before the first request for data, to fetch instructions, and after the last response.
_LAUNCH_CYCLES = 60
_FINISH_CYCLES = 30
# Cycles from the end of a dependence to the first micro-op or request: within compute, when it
# waits for the other unit, and in a module that waits for a token.
_RESULT_CYCLES = timing.LATENCIES.issue_to_item + timing.GEMM_LATENCY
_TOKEN_CYCLES = 15
# Cycles from the last use of data in a scratchpad to the first use of the data that replace them.
ROUND_TRIP_CYCLES = READ_LATENCY + 2 * _TOKEN_CYCLES
# ALU instructions behind which GEMM can issue: the executing one and those in the ALU's queue.
OVERLAPPING_PASSES = 1 + timing.ALU_COMMANDS
# The words after which loads and stores take turns on the bus.
_PIECE_WORDS = timing.BEATS_AHEAD


@dataclass(frozen=True)
class Estimate:
    """Cycles of a schedule, and where they go.

    ``gemm``, ``alu`` and ``bus`` are the cycles in which each is busy. ``fill`` are the cycles
    before the first multiplication, and ``drain`` those after the last one.
    """

    cycles: float
    gemm: float
    alu: float
    bus: float
    fill: float
    drain: float

    @property
    def waits(self) -> float:
        """Cycles in between in which GEMM waits: for data, for accumulators, or for the ALU."""
        return self.cycles - self.fill - self.gemm - self.drain

    @property
    def limit(self) -> str:
        """The part that is busy longest."""
        return max(("gemm", "alu", "bus"), key=lambda part: float(getattr(self, part)))


class Task:
    """Work of ``amount`` cycles of a unit, or of ``amount`` words on the bus, which starts once all
    tasks in ``after`` have ended; None is no dependence. The successor of a ``queued`` task need
    not wait until that task starts. ``end`` is in cycles from the launch, None while unknown;
    ``retired`` is when its module pushes its tokens, in program order.
    """

    __slots__ = ("after", "amount", "end", "multiplies", "queued", "rate", "retired", "unit")

    def __init__(
        self,
        unit: str,
        amount: float,
        after: Sequence[Task | None],
        rate: float = 1.0,
        multiplies: bool = True,
        queued: bool = False,
    ) -> None:
        self.unit = unit
        self.amount = amount
        self.after = after
        self.rate = rate
        self.multiplies = multiplies
        self.queued = queued
        self.end: float | None = None
        self.retired = 0.0


class Pipeline:
    """The tasks of a schedule, in the order of its program."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._queues = {name: deque[Task]() for name in ("load", "compute", "store")}
        # Memoized words and rates of transfers, most of which are alike.
        self._transfers: dict[tuple[str, int, int], tuple[int, float]] = {}

    def load(self, rows: int, row_bytes: int, after: Sequence[Task | None] = ()) -> Task:
        """Loads inputs or weights, ``rows`` of ``row_bytes`` bytes; ``after`` are the users of the
        data that they overwrite."""
        return self._transfer("load", rows, row_bytes, after)

    def load_for_compute(self, size: int) -> Task:
        """Loads ``size`` bytes of micro-ops or accumulators, which does not overlap with GEMM or
        ALU."""
        return self._transfer("compute", 1, size, ())

    def reset(self, cycles: float, after: Sequence[Task | None]) -> Task:
        """GEMM that resets accumulators."""
        return self._add("compute", Task("gemm", cycles, after, multiplies=False))

    def gemm(self, cycles: float, after: Sequence[Task | None]) -> Task:
        return self._add("compute", Task("gemm", cycles, after))

    def alu(self, cycles: float, after: Sequence[Task | None], passes: int = 1) -> Task:
        """``passes`` ALU instructions of ``cycles`` each. Later compute instructions issue, at the
        earliest, when the last of them are in the ALU's queue.
        """
        last = min(passes, OVERLAPPING_PASSES)
        if passes > last:
            self._add("compute", Task("alu", (passes - last) * cycles, after))
        return self._add("compute", Task("alu", last * cycles, after, queued=True))

    def store(self, rows: int, row_bytes: int, after: Sequence[Task | None]) -> Task:
        return self._transfer("store", rows, row_bytes, after)

    def forward(self, vectors: int, after: Sequence[Task | None]) -> Task:
        """Stores so many vectors, padding included, to the scratchpad of inputs."""
        return self._add("store", Task("inp", vectors, after))

    def estimate(
        self, schedule: Iterable[None] = (), limit: float = inf, least: float = 0.0
    ) -> Estimate:
        """The estimate of all tasks; to be called once.

        ``schedule`` may be a generator that adds tasks at each step, as the walk needs them.
        ``least`` are the cycles of all of GEMM, of the ALU as far as it cannot overlap with GEMM,
        and of the last store: the walk ends as soon as they make it certain that ``limit`` is
        reached. The estimate then assumes that the rest waits in proportion.
        """
        return _Walk(self._config, self._queues, iter(schedule), limit, least).estimate()

    def _add(self, module: str, task: Task) -> Task:
        self._queues[module].append(task)
        return task

    def _transfer(
        self, module: str, rows: int, row_bytes: int, after: Sequence[Task | None]
    ) -> Task:
        known = self._transfers.get((module, rows, row_bytes))
        if known is None:
            words = rows * -(-row_bytes // self._config.bus_bytes)
            cycles = bus_cycles(self._config, rows, row_bytes, reads=module != "store")
            known = words, float(words / cycles) if words else 1.0
            self._transfers[module, rows, row_bytes] = known
        task = Task("bus", known[0], after, known[1])
        self._queues[module].append(task)
        return task


def bus_cycles(config: Config, rows: Any, row_bytes: Any, reads: bool = True) -> Any:
    """Cycles of a transfer from its first word to its last. Arguments are numbers or arrays."""
    row = -(-row_bytes // config.bus_bytes)
    cycles = rows * row / BUS_SHARE
    if reads:
        # Short rows do not cover the latency: the reads in flight are too few words.
        rounds, rest = divmod(rows - 1, READS_OUTSTANDING)
        cycles = np.maximum(cycles, rounds * (READ_LATENCY + row) + (rest + 1) * row)
    return cycles


class BufferCopies:
    """The copies of a scratchpad buffer, loaded in rotation, each after its last use. ``loaded`` is
    the latest load.
    """

    def __init__(self, pipeline: Pipeline, copies: int) -> None:
        self._pipeline = pipeline
        self._copies = copies
        self._nest: object = None
        self._used_by: list[Task | None] = []
        self.loaded: Task | None = None

    def load(self, rows: int, row_bytes: int, nest: object) -> None:
        """Loads the next copy; copies of different loop nests share their place in the
        scratchpad."""
        back = self._copies if nest == self._nest else 1
        used_by = self._used_by[-back] if len(self._used_by) >= back else None
        self._nest = nest
        self._used_by.append(None)
        self.loaded = self._pipeline.load(rows, row_bytes, [used_by])

    def use(self, task: Task) -> None:
        """``task`` reads the copy that was loaded last."""
        self._used_by[-1] = task


class _Module:
    """Load, compute or store, with its tasks in order."""

    __slots__ = ("ahead", "at", "awaits", "free", "in_compute", "left", "queue", "task")

    def __init__(self, name: str, queue: deque[Task]) -> None:
        self.queue = queue
        # Cycles by which a request is ahead of its data.
        self.ahead = 0 if name == "store" else READ_LATENCY
        self.in_compute = name == "compute"
        # The cycle from which the module can begin its next task.
        self.free = float(_LAUNCH_CYCLES)
        self.task: Task | None = None
        # The cycle in which its task can begin or go on; infinite if there is no task, or if that
        # is not known yet.
        self.at = inf
        # A task that its own waits for, and whose end was unknown when it was looked at.
        self.awaits: Task | None = None
        # Words of the task that are still to be transferred.
        self.left = 0.0

    def look(self) -> None:
        """Finds out when its task can begin."""
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
            handed = end + _RESULT_CYCLES if own else other.retired + _TOKEN_CYCLES
            if handed > at:
                at = handed
        self.awaits = None
        self.at = at


class _Walk:
    """A walk over tasks in the order of time. Comparisons instead of min and max, whose calls would
    double the time."""

    def __init__(
        self,
        config: Config,
        queues: dict[str, deque[Task]],
        schedule: Iterator[None],
        limit: float,
        least: float,
    ) -> None:
        self.overlap = bool(config.overlap)
        # The share of the words of a load after which an element is complete and written.
        self.write_share = min(config.bus_bytes / config.inp.element_bytes, 1.0)
        self.modules = [_Module(name, queue) for name, queue in queues.items()]
        self.schedule: Iterator[None] | None = schedule
        self.limit, self.least = limit, least + READ_LATENCY + _FINISH_CYCLES
        # The cycle from which each unit is free, and the cycles that it has been busy.
        self.gemm_free = self.alu_free = self.bus_free = 0.0
        self.gemm = self.alu = self.bus = 0.0
        self.fill: float | None = None
        # What compute has been handed so far has retired by then.
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
                # No other module uses the bus until one of them is ready.
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
        cycles = end + _FINISH_CYCLES
        return self._estimate(cycles, self.gemm, self.fill or 0.0, cycles - self.gemm_free)

    def _estimate(self, cycles: float, gemm: float, fill: float, drain: float) -> Estimate:
        return Estimate(cycles, gemm, self.alu, self.bus, fill, drain)

    @property
    def done(self) -> float:
        """Cycles walked so far that no overlap can hide: those of GEMM, and of the ALU if the two
        do not overlap.
        """
        return self.gemm + (0.0 if self.overlap else self.alu)

    def projected(self) -> Estimate:
        """An estimate that extrapolates from the part that was walked: all work, with waits in
        proportion."""
        fill = self.fill or 0.0
        waits = (self.gemm_free - fill - self.done) * self.least / self.done
        return self._estimate(fill + self.least + waits, self.least, fill, 0.0)

    def proceed(self, module: _Module) -> None:
        """Takes the next task of a module, for which the schedule may have to add tasks."""
        queue = module.queue
        while not queue and self.schedule is not None:
            try:
                next(self.schedule)
            except StopIteration:
                self.schedule = None
        if queue:
            module.task = task = queue.popleft()
            module.left = task.amount
        else:
            module.task = None

    def move(self, module: _Module, task: Task, request: float, until: float) -> None:
        """Transfers the next piece of ``task``."""
        ahead, rate = module.ahead, task.rate
        if module.in_compute:
            request = max(request, self.gemm_free, self.alu_free)
        begin = request + ahead
        if begin < self.bus_free:
            begin = self.bus_free
        words = (until - begin) * rate
        if words < _PIECE_WORDS:
            words = _PIECE_WORDS
        if words > module.left:
            words = module.left
        cycles = words / rate
        ended = begin + cycles
        self.bus_free = ended
        self.bus += cycles
        module.left -= words
        module.free = request if request > ended - ahead else ended - ahead
        if module.left <= 0:
            # A store ends with its response.
            task.end = task.retired = ended if ahead else ended + READ_LATENCY
            if module.in_compute:
                module.free = ended

    def forwarding(self, task: Task, at: float, load: _Module) -> float:
        """The cycles of a FORWARD from ``at`` on, which waits where words of a load are written."""
        words = load.left if load.task is not None and load.at <= at + task.amount else 0.0
        return task.amount + min(words, task.amount) * self.write_share

    def run(self, module: _Module, task: Task, ready: float) -> bool:
        """Runs a task of GEMM or the ALU. Returns whether the schedule is certain to reach the
        limit."""
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
            # Without the resets before it.
            self.fill = begin - self.gemm
        self.gemm_free = end
        self.gemm += task.amount
        return end + self.least - self.done >= self.limit
