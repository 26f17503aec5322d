"""Joins layers' streams, so that a layer starts while its predecessor drains.

Within a layer, tokens order its instructions. Between two layers there are additional conflicts: a
layer loads what its predecessor stores, into scratchpads that the predecessor still reads. The
joined stream has a token for each such conflict, unless an earlier token implies it. A token from
store to load passes through compute.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import TOKEN_QUEUES, Memory, Module, TokenQueue
from amaranth_vta.sw.runtime.instruction_words import Words, instruction_words
from amaranth_vta.sw.runtime.memory import Buffer
from amaranth_vta.sw.runtime.stream import NO_OPERATION_BITS, POP, PUSH, SET_PADDING, Stream

from .accesses import WEIGHTS, InstructionAccesses, Interval, MicroOps, StreamAccesses, overlap
from .happens_before import PushedToken, StreamClocks, VectorClock
from .prefetch_weights import prefetch_weights

_LOAD, _COMPUTE, _STORE = _MODULES = (Module.LOAD, Module.COMPUTE, Module.STORE)
_COMPUTE_TO_LOAD, _STORE_TO_COMPUTE = (_COMPUTE, _LOAD), (_STORE, _COMPUTE)
_PUSH_TO_COMPUTE = PUSH[_LOAD, _COMPUTE]
# Per module, the queues that it pushes to and pops from, with the flags.
_PUSHES = [[(queue, PUSH[queue]) for queue in TOKEN_QUEUES if queue[0] is one] for one in _MODULES]
_POPS = [[(queue, POP[queue]) for queue in TOKEN_QUEUES if queue[1] is one] for one in _MODULES]

# Interval, in instructions, at which to check whether the rest of a layer can be appended
# unchanged.
_CHECK_INTERVAL = 16


class CannotJoin(ValueError):
    """A stream must be launched separately; the message says why."""


class _Access(NamedTuple):
    """An instruction of an earlier layer, and the intervals that it accesses."""

    number: int
    scratchpads: dict[Memory, Interval]
    dram: Interval | None
    clock: VectorClock


@dataclass
class Joined:
    """``stream`` contains the layers in order; layer n ends before instruction ``ends``[n]."""

    stream: Stream = field(default_factory=Stream)
    ends: list[int] = field(default_factory=list)


def join(config: Config, memory: npt.NDArray[np.uint8], streams: Sequence[Stream]) -> Joined:
    """Join the streams of consecutive layers; ``memory`` as in `Joiner`. Raises `CannotJoin`."""
    joiner = Joiner(config, memory)
    for part in prefetch_weights(config, streams):
        joiner.add(part)
    return joiner.joined


class Joiner:
    """Joins consecutive streams. ``memory`` is the device's memory, with the micro-ops that the
    streams load. Each stream must push the tokens that it pops, and leave none.
    """

    def __init__(self, config: Config, memory: npt.NDArray[np.uint8]) -> None:
        self.joined = Joined()
        self._micro_ops = MicroOps(config, memory)
        layouts = isa.instruction_set(config).layouts
        self._claims = {
            opcode: layout["independent"].insert(1)
            for opcode, layout in layouts.items()
            if "independent" in layout
        }
        self._no_op_gemm = isa.instruction_set(config).encode(
            isa.Gemm(uop_end=0, independent=int(bool(config.overlap)))
        )
        # Vector clocks: per module, the last instruction of each module that it knows to have
        # retired.
        self._clocks = [[-1, -1, -1] for _ in _MODULES]
        # Pairs of a compute instruction and the last STORE that it knows to have retired.
        self._known_stores: list[tuple[int, int]] = [(-1, -1)]
        self._queues: dict[TokenQueue, deque[PushedToken]] = {
            queue: deque() for queue in TOKEN_QUEUES
        }
        # Per queue, the number of upcoming pops to drop because another token implies theirs.
        self._dropped = dict.fromkeys(TOKEN_QUEUES, 0)
        # Per module, accesses of instructions of earlier layers, and of the current layer.
        self._earlier: tuple[list[_Access], ...] = ([], [], [])
        self._own: tuple[list[_Access], ...] = ([], [], [])
        # Per module, a bounding interval of all DRAM that earlier layers access.
        self._dram_bounds: list[Interval] = [(0, 0) for _ in _MODULES]
        self._waiting_units: set[int] = set()

    def add(self, part: Stream) -> None:
        """Append a stream that is complete except for its FINISH; raises `CannotJoin`."""
        if not part.balanced():
            raise CannotJoin("it leaves tokens in a queue")
        for module in _MODULES:
            done = self._retired_for_others(module)
            self._earlier[module].extend(self._own[module])
            self._earlier[module][:] = [use for use in self._earlier[module] if use.number > done]
            self._own[module].clear()
            moved = [use.dram for use in self._earlier[module] if use.dram is not None]
            self._dram_bounds[module] = (
                min((begin for begin, _ in moved), default=0),
                max((end for _, end in moved), default=0),
            )
        # Claims of independence only hold within a layer: its first instructions wait for earlier
        # layers.
        self._waiting_units = set(self._claims)
        for padding, value in self.joined.stream.padding.items():
            if value:
                instruction = isa.set_padding(padding, 0)
                self._emit(isa.module_of(instruction), SET_PADDING.encode(instruction), None)
        self.joined.stream.padding = dict(part.padding)
        buffers = dict(part.relocations)
        words = instruction_words(part.words)
        accesses = StreamAccesses(self._micro_ops, words, part.relocations)
        first = _weights_first(part.words, accesses)
        checked, last = 0, -1
        for count, place in enumerate(_with_early_loads(words, accesses)):
            # The instructions appended so far are the first ``count`` ones of the layer.
            complete = count == last + 1 and count > max(first, default=-1)
            if complete and count >= checked + _CHECK_INTERVAL:
                checked = count
                if self._is_conflict_free():
                    self._append_unchanged(part, words, accesses, count)
                    break
            last = max(last, place)
            number = first.get(place, place)
            # The token pushed at a place must follow all moved loads, so the flag stays with the
            # place.
            word = part.words[number] & ~_PUSH_TO_COMPUTE | part.words[place] & _PUSH_TO_COMPUTE
            self._append_ordered(word, accesses[number], buffers.get(number))
        accesses.load_before(len(words))
        self.joined.ends.append(len(self.joined.stream.words))

    def _is_conflict_free(self) -> bool:
        """Whether no instruction of earlier layers can conflict with the rest of the layer."""
        if self._waiting_units or any(self._dropped.values()):
            return False
        return all(
            not uses or uses[-1].number <= self._clocks[module][other]
            for other, uses in zip(_MODULES, self._earlier, strict=True)
            for module in _MODULES
            if module is not other
        )

    def _append_unchanged(
        self, part: Stream, words: Words, accesses: StreamAccesses, begin: int
    ) -> None:
        """Append the instructions of a layer from ``begin`` on, unchanged."""
        stream = self.joined.stream
        shift = len(stream.words) - begin
        clocks = StreamClocks(
            words[begin:],
            accesses.modules[begin:],
            begin + shift,
            [self._clock(module) for module in _MODULES],
            self._queues,
        )
        stream.extend(part, begin)
        self._clocks = [list(clocks.at_end(module)) for module in _MODULES]
        for number, stored in clocks.known_stores():
            if stored > self._known_stores[-1][1]:
                self._known_stores.append((number, stored))
        for queue in self._queues.values():
            queue.clear()
        later = [
            (number, module)
            for module in _MODULES
            for number in clocks.numbers(module)
            if number > self._retired_for_others(module)
        ]
        for number, module in sorted(later):
            found = accesses[number - shift]
            if found.read or found.dram is not None:
                clock = clocks.after(module, number)
                self._own[module].append(_Access(number, found.read, found.dram, clock))

    def _retired_for_others(self, module: Module) -> int:
        """The last instruction of ``module`` that all other modules know to have retired."""
        return min(self._clocks[other][module] for other in _MODULES if other is not module)

    def _append_ordered(
        self, bits: int, accesses: InstructionAccesses, buffer: Buffer | None
    ) -> None:
        module = accesses.module
        bits = self._pop_tokens(module, bits)
        if module is _LOAD:
            bits = self._ordered_load(bits, accesses)
        elif module is _COMPUTE:
            bits = self._ordered_compute(bits, accesses)
        else:
            self._check_store(accesses)
        number = self._emit(module, bits, buffer)
        if accesses.read or accesses.dram is not None:
            use = _Access(number, accesses.read, accesses.dram, self._clock(module))
            self._own[module].append(use)

    def _emit(self, module: Module, bits: int, buffer: Buffer | None) -> int:
        """Append an instruction, and its tokens to their queues; returns its number."""
        stream = self.joined.stream
        number = len(stream.words)
        stream.append_before_pops(module, bits, buffer)
        self._clocks[module][module] = number
        for queue, flag in _PUSHES[module]:
            if bits & flag:
                self._queues[queue].append(PushedToken(number, self._clock(module)))
        return number

    def _clock(self, module: Module) -> VectorClock:
        load, compute, store = self._clocks[module]
        return load, compute, store

    def _pop_tokens(self, module: Module, bits: int) -> int:
        """``bits`` without dropped pops; merges the clocks of the popped tokens into that of
        ``module``.
        """
        for queue, flag in _POPS[module]:
            if bits & flag:
                if self._dropped[queue]:
                    self._dropped[queue] -= 1
                    bits &= ~flag
                else:
                    self._merge_clock(module, self._queues[queue].popleft().clock)
        return bits

    def _merge_clock(self, module: Module, clock: Iterable[int]) -> None:
        own = self._clocks[module]
        own[:] = map(max, own, clock)
        if module is _COMPUTE and own[_STORE] > self._known_stores[-1][1]:
            # Known from the next compute instruction on.
            self._known_stores.append((len(self.joined.stream.words), own[_STORE]))

    # Dependences of an instruction.

    def _latest_conflict(
        self, module: Module, of: Module, where: Memory | None, at: Interval | None
    ) -> int:
        """The last instruction of module ``of`` in earlier layers that accesses the interval ``at``
        of the scratchpad ``where`` (None for DRAM) and that ``module`` does not know to have
        retired; -1 if there is none.
        """
        if at is None or (where is None and not overlap(at, self._dram_bounds[of])):
            return -1
        known = self._clocks[module][of]
        for use in reversed(self._earlier[of]):
            if use.number <= known:
                break
            other = use.dram if where is None else use.scratchpads.get(where)
            if other is not None and overlap(other, at):
                return use.number
        return -1

    def _ordered_load(self, bits: int, accesses: InstructionAccesses) -> int:
        freed = max(
            (self._latest_conflict(_LOAD, _COMPUTE, *item) for item in accesses.written.items()),
            default=-1,
        )
        stored = self._latest_conflict(_LOAD, _STORE, None, accesses.dram)
        if stored >= 0:
            place = bisect_left(self._known_stores, stored, key=lambda item: item[1])
            if place == len(self._known_stores):
                self._emit_wait(stored)
                freed = len(self.joined.stream.words) - 1
            else:
                freed = max(freed, self._known_stores[place][0])
        return bits if freed < 0 else self._wait_for_compute(freed, bits)

    def _ordered_compute(self, bits: int, accesses: InstructionAccesses) -> int:
        stored = self._latest_conflict(_COMPUTE, _STORE, None, accesses.dram)
        for item in accesses.written.items():
            stored = max(stored, self._latest_conflict(_COMPUTE, _STORE, *item))
        if stored >= 0:
            bits |= self._pop_of_store(stored)
        if accesses.opcode in self._waiting_units:
            bits &= ~self._claims[isa.Opcode(accesses.opcode)]
            multiplies = accesses.opcode != isa.Opcode.ALU
            self._waiting_units -= {
                unit for unit in self._waiting_units if (unit != isa.Opcode.ALU) == multiplies
            }
        elif accesses.opcode == isa.Opcode.LOAD:
            self._waiting_units.clear()  # a LOAD of compute waits for both units
        return bits

    def _check_store(self, accesses: InstructionAccesses) -> None:
        for other in (_LOAD, _COMPUTE):
            if self._latest_conflict(_STORE, other, None, accesses.dram) >= 0:
                raise CannotJoin("it stores over what an earlier layer may still read")

    # Tokens between layers.

    def _emit_wait(self, stored: int) -> None:
        """Emit a no-op compute instruction that waits for the STORE ``stored``."""
        self._emit(_COMPUTE, self._no_op_gemm | self._pop_of_store(stored), None)

    def _pop_of_store(self, stored: int) -> int:
        """The pop by which the next compute instruction waits for the STORE ``stored``."""
        self.joined.stream.words[stored] |= PUSH[_STORE_TO_COMPUTE]
        use = next(use for use in self._earlier[_STORE] if use.number == stored)
        self._merge_clock(_COMPUTE, use.clock)
        return POP[_STORE_TO_COMPUTE]

    def _wait_for_compute(self, producer: int, bits: int) -> int:
        """The LOAD ``bits``, changed to wait for the compute instruction ``producer``."""
        words, queue = self.joined.stream.words, self._queues[_COMPUTE_TO_LOAD]
        # This token implies those in flight from earlier instructions, since load pops it before
        # them.
        while queue and queue[0].producer <= producer:
            words[queue.popleft().producer] &= ~PUSH[_COMPUTE_TO_LOAD]
            self._dropped[_COMPUTE_TO_LOAD] += 1
        words[producer] |= PUSH[_COMPUTE_TO_LOAD]
        place = bisect_right(self._known_stores, producer, key=lambda item: item[0])
        self._merge_clock(_LOAD, (-1, producer, self._known_stores[place - 1][1]))
        if bits & POP[_COMPUTE_TO_LOAD]:
            self._emit(_LOAD, NO_OPERATION_BITS[_LOAD] | POP[_COMPUTE_TO_LOAD], None)
        return bits | POP[_COMPUTE_TO_LOAD]


def _with_early_loads(words: Words, accesses: StreamAccesses) -> Iterator[int]:
    """The places of a layer's instructions, each load one tile earlier than in the layer if its
    tokens allow it. If the load waits for a STORE of an earlier layer, by a token through compute,
    it then does not wait for the products of the tile before it.
    """
    flags, of = words[:, 0], accesses.modules
    pops = (of == _LOAD) & (flags & np.uint64(POP[_COMPUTE_TO_LOAD]) != 0)
    pushes = (of == _COMPUTE) & (flags & np.uint64(PUSH[_COMPUTE_TO_LOAD]) != 0)
    begins_tile = (of == _COMPUTE) & (flags & np.uint64(POP[_LOAD, _COMPUTE]) != 0)
    # LOADs that compute executes: loads that come later must not delay them.
    delays = (of == _COMPUTE) & accesses.is_load
    needed, tiles, delayed = pops.cumsum(), begins_tile.cumsum(), delays.cumsum()
    loads, pushed = deque(np.flatnonzero(of == _LOAD).tolist()), 0
    for place in np.flatnonzero(of != _LOAD).tolist():
        while loads and (
            loads[0] < place
            or (
                needed[loads[0]] <= pushed
                and tiles[loads[0]] <= tiles[place]
                and delayed[loads[0]] <= delayed[place] - delays[place]
            )
        ):
            yield loads.popleft()
        yield place
        pushed += int(pushes[place])
    yield from loads


def _weights_first(words: Sequence[int], accesses: StreamAccesses) -> dict[int, int]:
    """Reorder the first loads of a layer so that weight loads precede input loads, which may have
    to wait for an earlier layer. Returns, per place, the instruction moved there.
    """
    first: list[int] = []
    for number in np.flatnonzero(accesses.modules == _LOAD).tolist():
        if words[number] & POP[_COMPUTE_TO_LOAD]:
            break
        first.append(number)
        if words[number] & _PUSH_TO_COMPUTE:
            break
    ordered = sorted(first, key=lambda number: accesses.memories[number] not in WEIGHTS)
    return dict(zip(first, ordered, strict=True))
