"""An instruction stream under construction: pushes and pops become flags of instructions."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from operator import itemgetter

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Module

from .instruction_words import Words, instruction_words
from .kernels import CommandError
from .memory import Buffer

_HEAD = isa.instruction_set(Config()).layouts[isa.Opcode.FINISH]
# Per queue (producer, consumer): the flag that pushes a token, and the flag that pops one.
PUSH = {
    (module, other): _HEAD[f"push_{side}"].insert(1)
    for module in Module
    for side, other in isa.neighbours(module).items()
}
POP = {
    (other, module): _HEAD[f"pop_{side}"].insert(1)
    for module in Module
    for side, other in isa.neighbours(module).items()
}
# No-ops that only exchange tokens. Their encodings are the same in all configurations.
_NO_OPERATION = {
    Module.LOAD: isa.Load(memory=isa.Memory.INP, x_size=0, y_size=0),
    Module.COMPUTE: isa.Load(memory=isa.Memory.UOP, x_size=0, y_size=0),
    Module.STORE: isa.Store(x_size=0, y_size=0),
}
NO_OPERATION_BITS = {
    module: isa.instruction_set(Config()).encode(instruction)
    for module, instruction in _NO_OPERATION.items()
}
SET_PADDING = isa.instruction_set(Config(pad_value=1))
FINISH_BITS = isa.instruction_set(Config()).encode(isa.Finish())


@dataclass
class Stream:
    """Instructions in program order, 128 bits each.

    `pop` takes effect before the next instruction of the consuming module, `push` after the latest
    instruction of the producing module. Each sets a flag of that instruction. If this would reorder
    the module's pops, work and pushes, a no-op is appended to carry the flag.
    """

    words: list[int] = field(default_factory=list)
    # (index of an instruction, buffer that contains its dram_base)
    relocations: list[tuple[int, Buffer]] = field(default_factory=list)
    # Per queue, tokens pushed but not popped by the instructions in `words`.
    outstanding: dict[tuple[Module, Module], int] = field(
        default_factory=lambda: dict.fromkeys(isa.TOKEN_QUEUES, 0)
    )
    # Padding values after the instructions in `words`; a run begins with zeros.
    padding: dict[isa.Padding, int] = field(default_factory=lambda: dict.fromkeys(isa.Padding, 0))
    _pending: list[list[tuple[Module, Module]]] = field(default_factory=lambda: [[], [], []])
    _latest: list[int | None] = field(default_factory=lambda: [None, None, None])

    def append(self, module: Module, bits: int, buffer: Buffer | None = None) -> None:
        pending = self._pending[module]
        if pending:
            for queue in pending:
                bits |= POP[queue]
                self.outstanding[queue] -= 1
            pending.clear()
        self.append_before_pops(module, bits, buffer)

    def append_before_pops(self, module: Module, bits: int, buffer: Buffer | None = None) -> None:
        """Like `append`, for an instruction that need not wait for pending pops."""
        if buffer is not None:
            self.relocations.append((len(self.words), buffer))
        self._latest[module] = len(self.words)
        self.words.append(bits)

    def extend(self, other: Stream, begin: int = 0, end: int | None = None) -> None:
        """Append instructions ``begin`` to ``end`` - 1 of ``other``, unchanged."""
        end = len(other.words) if end is None else end
        shift = len(self.words) - begin
        self.words += other.words[begin:end]
        first, last = (
            bisect_left(other.relocations, place, key=itemgetter(0)) for place in (begin, end)
        )
        self.relocations += [
            (index + shift, buffer) for index, buffer in other.relocations[first:last]
        ]
        for module, latest in enumerate(other._latest):
            if latest is not None and begin <= latest < end:
                self._latest[module] = latest + shift

    def set_padding_value(self, padding: isa.Padding, value: int) -> None:
        """Set the padding value of later loads of the memories of ``padding``."""
        if self.padding[padding] != value:
            instruction = isa.set_padding(padding, value)
            bits = SET_PADDING.encode(instruction)
            self.append_before_pops(isa.module_of(instruction), bits)
            self.padding[padding] = value

    def push(self, producer: Module, consumer: Module) -> None:
        flag = PUSH[_queue(producer, consumer)]
        latest = self._latest[producer]
        if self._pending[producer] or latest is None or self.words[latest] & flag:
            self.append(producer, NO_OPERATION_BITS[producer])
            latest = len(self.words) - 1
        self.words[latest] |= flag
        self.outstanding[producer, consumer] += 1

    def pop(self, producer: Module, consumer: Module) -> None:
        queue = _queue(producer, consumer)
        if queue in self._pending[consumer]:
            self.append(consumer, NO_OPERATION_BITS[consumer])
        self._pending[consumer].append(queue)

    def flush_pops(self) -> None:
        """Append no-ops for pops that are still pending."""
        for module in (Module.LOAD, Module.COMPUTE, Module.STORE):
            if self._pending[module]:
                self.append(module, NO_OPERATION_BITS[module])

    def balanced(self) -> bool:
        """Whether every pushed token is popped, and no pop is pending."""
        return not any(self.outstanding.values()) and not any(self._pending)

    def can_be_split(self) -> bool:
        """Whether the stream so far can run separately: no pop in it waits for a later push."""
        return min(self.outstanding.values()) >= 0

    def continuation(self) -> Stream:
        """An empty stream that continues one that can be split.

        A run ends when all its instructions have retired, and clears the remaining tokens; the
        continuation therefore pushes them again, by no-ops. It also sets padding values again.
        """
        stream = Stream()
        for padding, value in self.padding.items():
            stream.set_padding_value(padding, value)
        for queue, count in self.outstanding.items():
            for _ in range(count):
                stream.push(*queue)
        # Set after the pushes, which must not wait for these pops.
        stream._pending = self._pending
        return stream

    def is_empty(self) -> bool:
        return not self.words and not any(self._pending)

    def finished(self) -> Words:
        """The stream followed by a FINISH."""
        return instruction_words((*self.words, FINISH_BITS))


def _queue(producer: Module, consumer: Module) -> tuple[Module, Module]:
    if (producer, consumer) not in PUSH:
        raise CommandError(
            f"no tokens pass from {Module(producer).name.lower()} to "
            f"{Module(consumer).name.lower()}; "
            "they pass between load and compute and between compute and store"
        )
    return producer, consumer
