"""The functional model: the machine without a clock, and the definition of its behaviour.

Load, compute and store each execute their instructions in order, one whole instruction per step; an
*order* selects which of the modules that can step does so:

- ``program``: the one with the earliest instruction in the stream: sequential execution.
- ``reverse``: the one with the latest instruction, so that modules run as far apart as fetch and
  tokens allow.
- ``random:SEED``: a random one, for a random number of steps.
- ``last:MODULE``: load, compute or store, as named, only when no other can step.

A program in which tokens order all conflicting accesses has the same result in every order. So does
the report of a fault, since a possible step remains possible whatever other modules do.

docs/isa.md leaves the following open; this model decides it:

- Fetch examines an instruction after dispatching its predecessor and before checking the queue for
  room: a ``bus_error`` or a ``bad_stream`` is detected even when every queue is full. A stream of
  no instructions, or one whose address is not a multiple of 16, is a ``bad_stream`` at 0.
- Bits of GEMM and ALU outside all fields are reserved for extensions and must be 0. FINISH has no
  fields beyond its flags, and its other bits are ignored.
- An instruction that cannot push because a token counter is full has had its effects; it waits for
  room with all of its pushes. If room never becomes available, it reports a ``token_overflow``. (If
  it faulted at once, the report would depend on the progress of the receiver.) Among the faults of
  a stuck machine it counts like the others; a deadlock is reported only if there is no other fault.
- FINISH pops its tokens when they are available, then waits for load and store, then pushes.
- A transfer that leaves the bounds of its memory is a ``bus_error`` before any access, whatever
  memory would answer.
- A transfer without elements (``x_size`` = 0, or no row and no padding row) checks neither index
  nor address; padding rows alone access no DRAM. GEMM and ALU without micro-ops check nothing.
- The order of checks: legality, tokens, scratchpad indices, addresses. An instruction that faults
  writes nothing. A read is a bus error if any of its bytes lies beyond the memory.
- The initial contents of a scratchpad are arbitrary, not zero.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sw.runtime.device import Fault, Limits

from .execution import ExecutionFault, Executor
from .observers.observer import Observer


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run: its fault, the tokens left in each queue, and the counters, by their names
    in `registers.COUNTERS`.
    """

    fault: Fault | None
    tokens_left: dict[str, int]
    counters: dict[str, int]


class ClearModel:
    """Runs programs on NumPy arrays, in any order, with observers.

    ``memory`` is a 1-D uint8 array, shared with the host, that begins at address ``origin``; DRAM
    indices passed to observers are relative to it. Raises `ValueError` for an unknown ``order``.
    """

    def __init__(
        self,
        config: Config,
        memory: npt.NDArray[np.uint8],
        order: str = "program",
        observers: Sequence[Observer] = (),
        origin: int = 0,
    ) -> None:
        self._config = config
        self._memory = memory
        self._choose, seed = _parse_order(order)
        self.executor = Executor(config, memory, seed, observers, origin=origin)

    def set_limits(self, limits: Limits) -> None:
        """As `Device.set_limits`."""
        self.executor.limits = dict(limits)

    def run(self, insn_addr: int, insn_count: int, time_limit: float | None) -> Outcome:
        """Run ``insn_count`` instructions from byte ``insn_addr``; the limit is in seconds."""
        executor = self.executor
        executor.begin()
        for observer in executor.observers:
            observer.begin()
            first = insn_addr - executor.origin
            observer.fetch(range(first, first + insn_count * isa.INSTRUCTION_BYTES))
        executor.deadline = None if time_limit is None else time.monotonic() + time_limit
        machine = _Machine(self._config, self._memory, executor, insn_addr, insn_count)
        fault = machine.run(self._choose)
        tokens = {isa.queue_name(queue): count for queue, count in machine.tokens.items()}
        return Outcome(fault, tokens, dict(executor.counters))


# Chooses a module that can step, given the instruction index of each such module.
_Choice = Callable[[dict[isa.Module, int]], isa.Module]


def _parse_order(order: str) -> tuple[_Choice, int]:
    kind, _, which = order.partition(":")
    if order == "program":
        return lambda ready: min(ready, key=ready.__getitem__), 0
    if order == "reverse":
        return lambda ready: max(ready, key=ready.__getitem__), 0
    if kind == "random" and which.isdecimal():
        return _RandomChoice(int(which)), int(which)
    modules = {module.name.lower(): module for module in _EXECUTING}
    if kind == "last" and which in modules:
        last = modules[which]
        return lambda ready: min(ready, key=lambda module: (module is last, ready[module])), 0
    raise ValueError(
        f"order {order!r} is not program, reverse, random:SEED with a whole number, or last:MODULE "
        "with load, compute or store"
    )


class _RandomChoice:
    """Steps one module a random number of times, then another.

    Choosing anew for each step would keep the modules close together.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._module = isa.Module.FETCH
        self._steps = 0

    def __call__(self, ready: dict[isa.Module, int]) -> isa.Module:
        if self._steps == 0 or self._module not in ready:
            self._module = self._random.choice(list(ready))
            self._steps = self._random.choice((1, 1, 2, 5, 20, 100))
        self._steps -= 1
        return self._module


@dataclass(frozen=True)
class _Decoded:
    instruction: isa.Instruction
    module: isa.Module
    legal: bool
    pops: tuple[isa.TokenQueue, ...]
    pushes: tuple[isa.TokenQueue, ...]


@lru_cache(maxsize=1 << 14)
def _decode(instruction_set: isa.InstructionSet, bits: int) -> _Decoded:
    """Decode, cached across runs: a stream is run in many orders, and most instructions repeat."""
    instruction = instruction_set.decode(bits)
    module = isa.module_of(instruction)
    legal = instruction_set.problem(bits) is None
    if not legal:
        return _Decoded(instruction, module, legal, (), ())
    pops = tuple(
        (neighbour, module)
        for side, neighbour in isa.neighbours(module).items()
        if getattr(instruction, f"pop_{side}")
    )
    return _Decoded(instruction, module, legal, pops, pushes_of(instruction))


class _Queue:
    """A module's instructions, the oldest of which may be in progress."""

    def __init__(self) -> None:
        self.entries: deque[tuple[int, _Decoded]] = deque()
        # State of the oldest instruction: its tokens are popped; its effects, except its pushes,
        # are done.
        self.started = False
        self.executed = False
        self.stopped = False


class _Machine:
    """One run of one stream."""

    def __init__(
        self,
        config: Config,
        memory: npt.NDArray[np.uint8],
        executor: Executor,
        insn_addr: int,
        insn_count: int,
    ) -> None:
        self._instruction_set = isa.instruction_set(config)
        self._memory = memory
        self._executor = executor
        self._insn_addr = insn_addr
        self._insn_count = insn_count
        self._next = 0
        # The decoded instruction that fetch holds until its queue has room.
        self._fetched: _Decoded | None = None
        self._fetch_stopped = False
        self._queues = {module: _Queue() for module in _EXECUTING}
        self._faults: dict[int, tuple[isa.Module, isa.Cause]] = {}
        self._finished = False
        self.tokens = dict.fromkeys(isa.TOKEN_QUEUES, 0)

    def run(self, choose: _Choice) -> Fault | None:
        """Step modules until FINISH retires or none can step."""
        while not self._finished and (ready := self._ready()):
            if self._late():
                return self._timeout(ready)
            module = choose(ready)
            if module is isa.Module.FETCH:
                self._fetch()
            else:
                self._step(module)
        return None if self._finished else self._report()

    def _ready(self) -> dict[isa.Module, int]:
        """Modules that can step, each with the index of its instruction."""
        ready = {
            module: queue.entries[0][0]
            for module, queue in self._queues.items()
            if queue.entries and not queue.stopped and self._can_step(queue)
        }
        if not self._fetch_stopped and (
            self._fetched is None or self._has_room(self._fetched.module)
        ):
            ready[isa.Module.FETCH] = self._next
        return ready

    def _late(self) -> bool:
        deadline = self._executor.deadline
        return deadline is not None and time.monotonic() > deadline

    def _timeout(self, ready: dict[isa.Module, int]) -> Fault:
        """A timeout at the lowest-index instruction that could proceed or was interrupted."""
        unfinished = {index: module for module, index in ready.items()}
        for index, (module, cause) in self._faults.items():
            if cause is isa.Cause.TIMEOUT:
                unfinished[index] = module
        index, module = min(unfinished.items())
        return Fault(module.name.lower(), index, isa.Cause.TIMEOUT.name.lower())

    def _has_room(self, module: isa.Module) -> bool:
        return len(self._queues[module].entries) < isa.QUEUE_DEPTH

    def _fetch(self) -> None:
        """Read the next instruction, unless one is held, and dispatch it if its queue has room."""
        if self._fetched is None:
            cause = self._look()
            if cause is not None:
                self._faults[self._next] = (isa.Module.FETCH, cause)
                self._fetch_stopped = True
                return
        assert self._fetched is not None
        if self._has_room(self._fetched.module):
            self._queues[self._fetched.module].entries.append((self._next, self._fetched))
            self._fetched = None
            self._next += 1
            self._fetch_stopped = self._next == self._insn_count

    def _look(self) -> isa.Cause | None:
        size = isa.INSTRUCTION_BYTES
        address = self._insn_addr + self._next * size - self._executor.origin
        if self._insn_count == 0 or self._insn_addr % size:
            return isa.Cause.BAD_STREAM
        if address < 0 or address + size > self._memory.size:
            return isa.Cause.BUS_ERROR
        raw = self._memory[address : address + size].tobytes()
        decoded = _decode(self._instruction_set, int.from_bytes(raw, "little"))
        is_last = self._next == self._insn_count - 1
        if isinstance(decoded.instruction, isa.Finish) != is_last:
            return isa.Cause.BAD_STREAM
        self._fetched = decoded
        return None

    def _can_step(self, queue: _Queue) -> bool:
        _, decoded = queue.entries[0]
        if queue.executed:
            return self._can_push(decoded)
        if queue.started:
            return self._others_done()
        return all(self.tokens[pop] for pop in decoded.pops)

    def _can_push(self, decoded: _Decoded) -> bool:
        return all(self.tokens[push] < isa.TOKEN_LIMIT for push in decoded.pushes)

    def _others_done(self) -> bool:
        """Whether load and store have retired everything; FINISH is last, so nothing follows."""
        return not any(
            self._queues[module].entries for module in (isa.Module.LOAD, isa.Module.STORE)
        )

    def _step(self, module: isa.Module) -> None:
        """Advance the oldest instruction of ``module`` as far as possible."""
        queue = self._queues[module]
        index, decoded = queue.entries[0]
        try:
            if not decoded.legal:
                raise ExecutionFault(isa.Cause.ILLEGAL_INSTRUCTION)
            if not queue.started:
                for pop in decoded.pops:
                    self.tokens[pop] -= 1
                queue.started = True
                for observer in self._executor.observers:
                    observer.start(index, decoded.instruction, decoded.pops)
            is_finish = isinstance(decoded.instruction, isa.Finish)
            if not queue.executed:
                if is_finish and not self._others_done():
                    return
                self._executor.execute(index, decoded.instruction)
                queue.executed = True
            if not self._can_push(decoded):
                return
        except ExecutionFault as fault:
            self._faults[index] = (module, fault.cause)
            queue.stopped = True
            return
        for push in decoded.pushes:
            self.tokens[push] += 1
        for observer in self._executor.observers:
            observer.finish(index, module, decoded.pushes)
        queue.entries.popleft()
        queue.started = queue.executed = False
        self._finished = is_finish

    def _report(self) -> Fault:
        """The fault with the lowest index, or else a deadlock at the lowest blocked instruction."""
        faults = dict(self._faults)
        blocked = {}
        for module, queue in self._queues.items():
            if queue.entries and not queue.stopped:
                index = queue.entries[0][0]
                if queue.executed:
                    faults[index] = (module, isa.Cause.TOKEN_OVERFLOW)
                blocked[index] = (module, isa.Cause.DEADLOCK)
        index, (module, cause) = min((faults or blocked).items())
        return Fault(module.name.lower(), index, cause.name.lower())


def pushes_of(instruction: isa.Instruction) -> tuple[isa.TokenQueue, ...]:
    """Queues to which a legal instruction pushes when it retires."""
    module = isa.module_of(instruction)
    return tuple(
        (module, neighbour)
        for side, neighbour in isa.neighbours(module).items()
        if getattr(instruction, f"push_{side}")
    )


_EXECUTING = (isa.Module.LOAD, isa.Module.COMPUTE, isa.Module.STORE)
