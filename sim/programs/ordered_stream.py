"""Instruction streams in which tokens order all conflicting accesses of the modules."""

from __future__ import annotations

import random
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Alu, Depthwise, Gemm, Instruction, Load, Memory, Module, Store
from amaranth_vta.sim.model.observers.false_claims import InFlightAccesses, unit_of
from amaranth_vta.sim.model.observers.observer import Elements
from amaranth_vta.sim.model.observers.races import Accesses, VectorClocks

# Maximum tokens in a queue, below the hardware limit by the distance that one module may run ahead
# of another.
TOKENS = 900


@dataclass(frozen=True)
class MemoryAccess:
    """An access of an instruction to ``elements`` of a scratchpad, or to bytes of ``DRAM``."""

    memory: str
    elements: Elements
    writes: bool


@dataclass
class _Entry:
    instruction: Instruction
    pops: set[isa.TokenQueue]
    pushes: set[isa.TokenQueue] = field(default_factory=set)


class OrderedStream:
    """Instructions in program order, with the tokens that order their conflicts."""

    def __init__(self, config: Config, chance: random.Random) -> None:
        self.clocks = VectorClocks()
        self._chance = chance
        self._entries: list[_Entry] = []
        self._accesses = Accesses(config, 1 << 22)
        self._in_flight = InFlightAccesses(config)
        self._may_overlap = bool(config.overlap)
        self._latest: dict[Module, int] = {}

    def emit(self, instruction: Instruction, accesses: Sequence[MemoryAccess]) -> None:
        """Append an instruction, ordered after all conflicting ones, with some redundant tokens."""
        module = isa.module_of(instruction)
        after: dict[Module, int] = {}
        for access in accesses:
            for other, last in self._accesses.conflicts(
                module, access.memory, access.elements, access.writes
            ):
                after[other] = max(after.get(other, -1), int(last.max(initial=-1)))
        pops: set[isa.TokenQueue] = set()
        for other, index in after.items():
            self._order_after(module, other, index, pops)
        for queue, tokens in self.clocks.tokens.items():
            if (
                queue[1] is module
                and queue not in pops
                and tokens
                and (self._chance.random() < (0.5 if len(tokens) > 4 else 0.1))
            ):
                self.clocks.pop(queue)
                pops.add(queue)
        pushes = {
            queue
            for queue, tokens in self.clocks.tokens.items()
            if queue[0] is module and len(tokens) < TOKENS and self._chance.random() < 0.4
        }
        unit = unit_of(instruction)
        claimed = [access for access in accesses if access.memory == "ACC"]
        if self._may_overlap and isinstance(instruction, Gemm | Alu):
            assert unit is not None
            independent = not any(
                (self._in_flight.conflicts(unit, access.elements, access.writes) >= 0).any()
                for access in claimed
            )
            if independent and self._chance.random() < 0.7:
                instruction = replace(instruction, independent=1)
        self._append(instruction, pops, pushes)
        if unit is not None:
            for access in claimed:
                self._in_flight.record(len(self._entries) - 1, unit, access.elements, access.writes)
        for access in accesses:
            self._accesses.record(
                len(self._entries) - 1, module, access.memory, access.elements, access.writes
            )

    def forward_tokens(
        self,
        module: Module,
        pops: AbstractSet[isa.TokenQueue] = frozenset(),
        pushes: AbstractSet[isa.TokenQueue] = frozenset(),
    ) -> None:
        """Append an instruction of ``module`` that only pops and pushes tokens."""
        nothing: dict[Module, Instruction] = {
            Module.LOAD: Load(memory=self._chance.choice((Memory.INP, Memory.WGT)), x_size=0),
            Module.COMPUTE: Gemm(uop_end=0),
            Module.STORE: Store(x_size=0),
        }
        self._append(nothing[module], pops, pushes)

    def fill_queue(self) -> None:
        """Push hundreds of tokens to a queue, up to the room that it has."""
        queue = self._chance.choice(list(self.clocks.tokens))
        room = TOKENS - len(self.clocks.tokens[queue])
        for _ in range(min(self._chance.randint(200, 700), room)):
            self.forward_tokens(queue[0], pushes={queue})

    def instructions(self) -> list[Instruction]:
        result = []
        for entry in self._entries:
            module = isa.module_of(entry.instruction)
            flags: dict[str, Any] = {
                "pop_prev": int((Module(max(module - 1, 0)), module) in entry.pops),
                "pop_next": int((Module(module + 1), module) in entry.pops),
                "push_prev": int((module, Module(max(module - 1, 0))) in entry.pushes),
                "push_next": int((module, Module(module + 1)) in entry.pushes),
            }
            result.append(replace(entry.instruction, **flags))
        return result

    def _append(
        self,
        instruction: Instruction,
        pops: AbstractSet[isa.TokenQueue],
        pushes: AbstractSet[isa.TokenQueue],
    ) -> None:
        """Append an instruction whose pops have already been applied to the clocks."""
        module = isa.module_of(instruction)
        self._entries.append(_Entry(instruction, set(pops), set(pushes)))
        self._latest[module] = len(self._entries) - 1
        self._in_flight.start(instruction)
        self.clocks.advance(module, len(self._entries) - 1)
        for queue in pushes:
            self.clocks.push(queue)

    def _order_after(
        self, module: Module, other: Module, index: int, pops: set[isa.TokenQueue]
    ) -> None:
        """Order the next instruction of ``module`` after instruction ``index`` of ``other``.

        ``pops`` collects the tokens that the next instruction pops. It pops at most one per queue;
        further tokens are popped by empty instructions before it.
        """
        if self.clocks.retired[module][other] >= index:
            return
        # Load and store exchange no tokens directly, only through compute.
        via = other if Module.COMPUTE in (module, other) else Module.COMPUTE
        queue = (via, module)
        if not any(retired[other] >= index for retired in self.clocks.tokens[queue]):
            if via is not other:
                passed: set[isa.TokenQueue] = set()
                self._order_after(via, other, index, passed)
                if passed:
                    self.forward_tokens(via, pops=passed)
            self._push(queue)
        while self.clocks.retired[module][other] < index:
            if queue in pops:
                self.forward_tokens(module, pops=pops)
                pops.clear()
            self.clocks.pop(queue)
            pops.add(queue)

    def _push(self, queue: isa.TokenQueue) -> None:
        """Push a token after all instructions of the producer so far."""
        latest = self._entries[self._latest[queue[0]]]
        if queue in latest.pushes:
            self.forward_tokens(queue[0], pushes={queue})
        else:
            latest.pushes.add(queue)
            self.clocks.push(queue)


@dataclass(frozen=True)
class LoadedKernel:
    """An instruction whose micro-ops are at ``place``; ``accesses[0]`` are its writes,
    ``accesses[1]`` its first reads.
    """

    place: range
    instruction: Gemm | Alu
    accesses: list[MemoryAccess]


def kernel_accesses(
    config: Config, instruction: Gemm | Alu, uops: dict[str, Elements]
) -> list[MemoryAccess]:
    """Accesses of a GEMM or ALU instruction with these micro-op fields: writes, then reads."""

    def operands(name: str) -> Elements:
        outer, inner = np.divmod(
            np.arange(instruction.iter_out * instruction.iter_in), instruction.iter_in
        )
        offset = outer * getattr(instruction, f"{name}_factor_out") + inner * getattr(
            instruction, f"{name}_factor_in"
        )
        return (offset[:, np.newaxis] + uops[name]).reshape(-1)

    accesses = [MemoryAccess("ACC", operands("dst"), writes=True)]
    if isinstance(instruction, Alu) and not instruction.use_immediate:
        accesses.append(MemoryAccess("ACC", operands("src"), writes=False))
        for at in range(1, config.alu_sources(isa.AluOp(instruction.alu_opcode))):
            accesses.append(MemoryAccess("ACC", operands("src") + at, writes=False))
        if instruction.factor is not None:
            accesses.append(MemoryAccess("ACC", np.array([instruction.factor]), writes=False))
    if isinstance(instruction, Gemm) and not instruction.reset:
        for at in range(config.taps if isinstance(instruction, Depthwise) else 1):
            accesses.append(MemoryAccess("INP", operands("src") + at, writes=False))
        accesses.append(MemoryAccess("WGT", operands("wgt"), writes=False))
    return accesses
