"""False claims: instructions marked independent that conflict with compute's other unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config

from .observer import Elements, Observer


@dataclass(frozen=True)
class FalseClaim:
    """Instruction ``second`` is marked independent, but the other unit, GEMM or ALU, may still
    execute instruction ``first``; both access ACC[``element``], and at least one of them writes it.

    If the two are equal, the instruction writes its own parameters (REQUANTIZE), table (LOOKUP) or
    factor (MULTIPLY_ADD).
    """

    first: int
    second: int
    element: int

    def __str__(self) -> str:
        if self.first == self.second:
            return (
                f"instruction {self.first} writes ACC[{self.element}], one of its own parameters, "
                "part of its own table or its own factor"
            )
        return (
            f"instruction {self.second} claims to be independent, but may overtake instruction "
            f"{self.first}, with which it shares ACC[{self.element}]"
        )


class FalseClaims(Observer):
    """Collects the false claims of a run in ``found``.

    If there are none, overlapping independent instructions gives the same result as sequential
    execution.
    """

    def __init__(self, config: Config) -> None:
        self.found: list[FalseClaim] = []
        self._in_flight = InFlightAccesses(config)
        self.begin()

    def begin(self) -> None:
        self.found = []
        self._in_flight.wait()
        self._unit: Unit | None = None
        # Elements kept and written by the current instruction.
        self._kept: list[Elements] = []
        self._written: list[Elements] = []
        self._seen: set[FalseClaim] = set()

    def start(
        self, index: int, instruction: isa.Instruction, pops: Sequence[isa.TokenQueue]
    ) -> None:
        self._unit = unit_of(instruction)
        self._kept, self._written = [], []
        self._in_flight.start(instruction)

    def read(self, index: int, memory: str, elements: Elements) -> None:
        self._see(index, memory, elements, writes=False)

    def write(self, index: int, memory: str, elements: Elements) -> None:
        self._see(index, memory, elements, writes=True)
        if memory == "ACC":
            self._written.append(elements)
            self._compare(index, self._kept, elements)

    def keep(self, index: int, elements: Elements) -> None:
        self._kept.append(elements)
        self._compare(index, self._written, elements)

    def _compare(self, index: int, earlier: list[Elements], elements: Elements) -> None:
        """Record a claim if one instruction both keeps and writes an element."""
        for others in earlier:
            own = np.intersect1d(others, elements)
            if own.size:
                self._find(FalseClaim(index, index, int(own[0])))

    def _see(self, index: int, memory: str, elements: Elements, writes: bool) -> None:
        # Tokens order loads and stores, and are pushed only when an instruction is done.
        if memory != "ACC" or self._unit is None:
            return
        last = self._in_flight.conflicts(self._unit, elements, writes)
        if (last >= 0).any():
            at = int(np.where(last >= 0, elements, elements.max() + 1).argmin())
            self._find(FalseClaim(int(last[at]), index, int(elements[at])))
        self._in_flight.record(index, self._unit, elements, writes)

    def _find(self, claim: FalseClaim) -> None:
        if claim not in self._seen:
            self._seen.add(claim)
            self.found.append(claim)


class Unit(Enum):
    """The units of compute, each of which executes its instructions in order."""

    GEMM = "gemm"
    ALU = "alu"


def unit_of(instruction: isa.Instruction) -> Unit | None:
    """The unit that executes ``instruction``; None for LOAD and FINISH, which wait for both."""
    match instruction:
        case isa.Gemm():
            return Unit.GEMM
        case isa.Alu():
            return Unit.ALU
    return None


class InFlightAccesses:
    """For each unit of compute and each accumulator, the last instruction in flight that read it,
    and the last that wrote it; -1 for none.
    """

    def __init__(self, config: Config) -> None:
        self._last = {
            (unit, writes): np.full(config.acc.depth, -1)
            for unit in Unit
            for writes in (False, True)
        }

    def wait(self) -> None:
        """Mark all instructions as retired."""
        for last in self._last.values():
            last[:] = -1

    def start(self, instruction: isa.Instruction) -> None:
        """Forget the instructions that must have retired before ``instruction`` starts."""
        if isa.module_of(instruction) is not isa.Module.COMPUTE:
            return
        unit = unit_of(instruction)
        if unit is None:
            self.wait()
        elif not getattr(instruction, "independent", 0):
            for (other, _), last in self._last.items():
                if other is not unit:
                    last[:] = -1

    def conflicts(self, unit: Unit, elements: Elements, writes: bool) -> Elements:
        """For each of ``elements``, the last instruction of the other unit that conflicts with an
        access of ``unit``; -1 for none.
        """
        last = np.full(elements.shape, -1)
        for (other, other_writes), instructions in self._last.items():
            if other is not unit and (writes or other_writes):
                last = np.maximum(last, instructions[elements])
        return last

    def record(self, index: int, unit: Unit, elements: Elements, writes: bool) -> None:
        self._last[unit, writes][elements] = index
