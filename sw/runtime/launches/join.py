"""Joins layers' streams, so that a layer starts while its predecessor drains.

Within a layer, tokens order its instructions. Between two layers there are additional conflicts: a
layer loads what its predecessor stores, into scratchpads that the predecessor still reads. The
joined stream has a token for each such conflict, unless an earlier token implies it. A token from
store to load passes through compute.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
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

from .early_weights import with_early_weights
from .knowledge import Known, PushedToken, Steady
from .touched import Followed, Interval, MicroOps, Touched, overlap

_LOAD, _COMPUTE, _STORE = _MODULES = (Module.LOAD, Module.COMPUTE, Module.STORE)
_FREES, _STORED = (_COMPUTE, _LOAD), (_STORE, _COMPUTE)
_LOADED = PUSH[_LOAD, _COMPUTE]
# Per module, the queues that it pushes to and pops from, with the flags.
_GIVES = [[(queue, PUSH[queue]) for queue in TOKEN_QUEUES if queue[0] is one] for one in _MODULES]
_TAKES = [[(queue, POP[queue]) for queue in TOKEN_QUEUES if queue[1] is one] for one in _MODULES]

# Interval, in instructions, at which to check whether the rest of a layer can be appended
# unchanged.
_CHECKED = 16


class CannotJoin(ValueError):
    """A stream must be launched separately; the message says why."""


class _Use(NamedTuple):
    """An instruction of an earlier layer, and the intervals that it accesses."""

    number: int
    scratchpads: dict[Memory, Interval]
    dram: Interval | None
    known: Known


@dataclass
class Joined:
    """``stream`` contains the layers in order; layer n ends before instruction ``ends``[n]."""

    stream: Stream = field(default_factory=Stream)
    ends: list[int] = field(default_factory=list)


def join(config: Config, memory: npt.NDArray[np.uint8], streams: Sequence[Stream]) -> Joined:
    """Join the streams of consecutive layers; ``memory`` as in `Joiner`. Raises `CannotJoin`."""
    joiner = Joiner(config, memory)
    for part in with_early_weights(config, streams):
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
        self._wait = isa.instruction_set(config).encode(
            isa.Gemm(uop_end=0, independent=int(bool(config.overlap)))
        )
        # Per module, the last instruction of each module that it knows to have retired.
        self._known = [[-1, -1, -1] for _ in _MODULES]
        # Pairs of a compute instruction and the last STORE that it knows to have retired.
        self._compute_knows: list[tuple[int, int]] = [(-1, -1)]
        self._queues: dict[TokenQueue, deque[PushedToken]] = {
            queue: deque() for queue in TOKEN_QUEUES
        }
        # Per queue, the number of upcoming pops to drop because another token implies theirs.
        self._dropped = dict.fromkeys(TOKEN_QUEUES, 0)
        # Per module, accesses of instructions of earlier layers, and of the current layer.
        self._earlier: tuple[list[_Use], ...] = ([], [], [])
        self._own: tuple[list[_Use], ...] = ([], [], [])
        # Per module, a bounding interval of all DRAM that earlier layers access.
        self._moved: list[Interval] = [(0, 0) for _ in _MODULES]
        self._waiting_units: set[int] = set()

    def add(self, part: Stream) -> None:
        """Append a stream that is complete except for its FINISH; raises `CannotJoin`."""
        if not part.balanced():
            raise CannotJoin("it leaves tokens in a queue")
        for module in _MODULES:
            done = self._known_by_others(module)
            self._earlier[module].extend(self._own[module])
            self._earlier[module][:] = [use for use in self._earlier[module] if use.number > done]
            self._own[module].clear()
            moved = [use.dram for use in self._earlier[module] if use.dram is not None]
            self._moved[module] = (
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
        touched = Followed(self._micro_ops, words)
        first = _weights_first(part.words, touched)
        for place in range(len(words)):
            if place % _CHECKED == 0 and place > max(first, default=-1) and self._settled():
                self._append(part, words, touched, place)
                break
            number = first.get(place, place)
            # The token pushed at a place must follow all moved loads, so the flag stays with the
            # place.
            word = part.words[number] & ~_LOADED | part.words[place] & _LOADED
            self._instruction(word, touched[number], buffers.get(number))
        touched.load_before(len(words))
        self.joined.ends.append(len(self.joined.stream.words))

    def _settled(self) -> bool:
        """Whether no instruction of earlier layers can conflict with the rest of the layer."""
        if self._waiting_units or any(self._dropped.values()):
            return False
        return all(
            not uses or uses[-1].number <= self._known[module][other]
            for other, uses in zip(_MODULES, self._earlier, strict=True)
            for module in _MODULES
            if module is not other
        )

    def _append(self, part: Stream, words: Words, touched: Followed, begin: int) -> None:
        """Append the instructions of a layer from ``begin`` on, unchanged."""
        stream = self.joined.stream
        shift = len(stream.words) - begin
        steady = Steady(
            words[begin:],
            touched.modules[begin:],
            begin + shift,
            [self._snapshot(module) for module in _MODULES],
            self._queues,
        )
        stream.extend(part, begin)
        self._known = [list(steady.at_end(module)) for module in _MODULES]
        for number, stored in steady.stores_known():
            if stored > self._compute_knows[-1][1]:
                self._compute_knows.append((number, stored))
        for queue in self._queues.values():
            queue.clear()
        later = [
            (number, module)
            for module in _MODULES
            for number in steady.numbers(module)
            if number > self._known_by_others(module)
        ]
        for number, module in sorted(later):
            found = touched[number - shift]
            if found.read or found.dram is not None:
                known = steady.after(module, number)
                self._own[module].append(_Use(number, found.read, found.dram, known))

    def _known_by_others(self, module: Module) -> int:
        """The last instruction of ``module`` that all other modules know to have retired."""
        return min(self._known[other][module] for other in _MODULES if other is not module)

    def _instruction(self, bits: int, touched: Touched, buffer: Buffer | None) -> None:
        module = touched.module
        bits = self._take(module, bits)
        if module is _LOAD:
            bits = self._ordered_load(bits, touched)
        elif module is _COMPUTE:
            bits = self._ordered_compute(bits, touched)
        else:
            self._check_store(touched)
        number = self._emit(module, bits, buffer)
        if touched.read or touched.dram is not None:
            use = _Use(number, touched.read, touched.dram, self._snapshot(module))
            self._own[module].append(use)

    def _emit(self, module: Module, bits: int, buffer: Buffer | None) -> int:
        """Append an instruction, and its tokens to their queues; returns its number."""
        stream = self.joined.stream
        number = len(stream.words)
        stream.append_before_pops(module, bits, buffer)
        self._known[module][module] = number
        for queue, flag in _GIVES[module]:
            if bits & flag:
                self._queues[queue].append(PushedToken(number, self._snapshot(module)))
        return number

    def _snapshot(self, module: Module) -> Known:
        load, compute, store = self._known[module]
        return load, compute, store

    def _take(self, module: Module, bits: int) -> int:
        """``bits`` without dropped pops; updates what ``module`` knows from the tokens that it
        pops.
        """
        for queue, flag in _TAKES[module]:
            if bits & flag:
                if self._dropped[queue]:
                    self._dropped[queue] -= 1
                    bits &= ~flag
                else:
                    self._learn(module, self._queues[queue].popleft().known)
        return bits

    def _learn(self, module: Module, known: Iterable[int]) -> None:
        own = self._known[module]
        own[:] = map(max, own, known)
        if module is _COMPUTE and own[_STORE] > self._compute_knows[-1][1]:
            # Known from the next compute instruction on.
            self._compute_knows.append((len(self.joined.stream.words), own[_STORE]))

    # Dependences of an instruction.

    def _latest(self, module: Module, of: Module, where: Memory | None, at: Interval | None) -> int:
        """The last instruction of module ``of`` in earlier layers that accesses the interval ``at``
        of the scratchpad ``where`` (None for DRAM) and that ``module`` does not know to have
        retired; -1 if there is none.
        """
        if at is None or (where is None and not overlap(at, self._moved[of])):
            return -1
        known = self._known[module][of]
        for use in reversed(self._earlier[of]):
            if use.number <= known:
                break
            other = use.dram if where is None else use.scratchpads.get(where)
            if other is not None and overlap(other, at):
                return use.number
        return -1

    def _ordered_load(self, bits: int, touched: Touched) -> int:
        freed = max(
            (self._latest(_LOAD, _COMPUTE, *item) for item in touched.written.items()), default=-1
        )
        stored = self._latest(_LOAD, _STORE, None, touched.dram)
        if stored >= 0:
            place = bisect_left(self._compute_knows, stored, key=lambda item: item[1])
            if place == len(self._compute_knows):
                self._emit_wait(stored)
                freed = len(self.joined.stream.words) - 1
            else:
                freed = max(freed, self._compute_knows[place][0])
        return bits if freed < 0 else self._free(freed, bits)

    def _ordered_compute(self, bits: int, touched: Touched) -> int:
        stored = self._latest(_COMPUTE, _STORE, None, touched.dram)
        for item in touched.written.items():
            stored = max(stored, self._latest(_COMPUTE, _STORE, *item))
        if stored >= 0:
            bits |= self._pop_of_store(stored)
        if touched.opcode in self._waiting_units:
            bits &= ~self._claims[isa.Opcode(touched.opcode)]
            multiplies = touched.opcode != isa.Opcode.ALU
            self._waiting_units -= {
                unit for unit in self._waiting_units if (unit != isa.Opcode.ALU) == multiplies
            }
        elif touched.opcode == isa.Opcode.LOAD:
            self._waiting_units.clear()  # a LOAD of compute waits for both units
        return bits

    def _check_store(self, touched: Touched) -> None:
        for other in (_LOAD, _COMPUTE):
            if self._latest(_STORE, other, None, touched.dram) >= 0:
                raise CannotJoin("it stores over what an earlier layer may still read")

    # Tokens between layers.

    def _emit_wait(self, stored: int) -> None:
        """Emit a no-op compute instruction that waits for the STORE ``stored``."""
        self._emit(_COMPUTE, self._wait | self._pop_of_store(stored), None)

    def _pop_of_store(self, stored: int) -> int:
        """The pop by which the next compute instruction waits for the STORE ``stored``."""
        self.joined.stream.words[stored] |= PUSH[_STORED]
        use = next(use for use in self._earlier[_STORE] if use.number == stored)
        self._learn(_COMPUTE, use.known)
        return POP[_STORED]

    def _free(self, giver: int, bits: int) -> int:
        """The LOAD ``bits``, changed to wait for the compute instruction ``giver``."""
        words, queue = self.joined.stream.words, self._queues[_FREES]
        # This token implies those in flight from earlier instructions, since load pops it before
        # them.
        while queue and queue[0].giver <= giver:
            words[queue.popleft().giver] &= ~PUSH[_FREES]
            self._dropped[_FREES] += 1
        words[giver] |= PUSH[_FREES]
        place = bisect_right(self._compute_knows, giver, key=lambda item: item[0])
        self._learn(_LOAD, (-1, giver, self._compute_knows[place - 1][1]))
        if bits & POP[_FREES]:
            self._emit(_LOAD, NO_OPERATION_BITS[_LOAD] | POP[_FREES], None)
        return bits | POP[_FREES]


def _weights_first(words: Sequence[int], touched: Followed) -> dict[int, int]:
    """Reorder the first loads of a layer so that weight loads precede input loads, which may have
    to wait for an earlier layer. Returns, per place, the instruction moved there.
    """
    first: list[int] = []
    for number in np.flatnonzero(touched.modules == _LOAD).tolist():
        if words[number] & POP[_FREES]:
            break
        first.append(number)
        if words[number] & _LOADED:
            break
    ordered = sorted(first, key=lambda number: touched.memories[number] != Memory.WGT)
    return dict(zip(first, ordered, strict=True))
