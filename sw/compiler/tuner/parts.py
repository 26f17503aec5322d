"""Divides workloads into parts, which compute disjoint parts of the results: `divided`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol, Self, runtime_checkable

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.sw.compiler.environment import Environment

from .search import Choice
from .workload import Scheduled, Workload, choose, schedule_of

# Least cycles that a division must save, for the host's time between launches. A barrier also
# exposes the load of the first operands, but in most cases neighbouring layers need one anyway.
_BARRIER_CYCLES = 1000


@runtime_checkable
class Divisible(Protocol):
    """A workload that can be computed in parts."""

    @property
    def extents(self) -> Mapping[int, int]:
        """Extents of the axes of the output that can be divided, by negative index."""

    def part(self, axis: int, extent: int) -> Self:
        """A workload like a part of the output with this ``extent`` along ``axis``, for the tuner:
        as much work, and with the same knobs.
        """


@dataclass(frozen=True)
class WorkloadPart:
    """The workload that computes ``extent`` elements from ``begin`` on along ``axis``, a negative
    index, of the output of ``whole``. It has the same arguments.
    """

    whole: Any
    axis: int
    begin: int
    extent: int

    def without_parameters(self) -> WorkloadPart:
        return replace(self, whole=schedule_of(self.whole))

    def scheduled(self, env: Environment, knobs: Any) -> Scheduled:
        schedule, args = self.whole.scheduled(env, knobs)
        # Other outputs are stored in the loops of the first.
        output = schedule.outputs[0]
        stage = schedule[output]
        stage.compute_part(stage.op.axis[self.axis], self.begin, self.extent)
        return schedule, args

    def considered(self, config: Config) -> Choice[Any]:
        return choose(self.whole.part(self.axis, self.extent), config)


def divided(workload: Workload[Any], system: SystemConfig) -> tuple[WorkloadPart, ...]:
    """Divide ``workload`` along one axis into parts of almost equal extent, at most one per machine
    of ``system``, such that the largest takes the fewest estimated cycles; empty if the whole takes
    fewer.
    """
    best: tuple[WorkloadPart, ...] = ()
    if system.is_single or not isinstance(workload, Divisible):
        return best
    least = choose(workload, system.config).cycles - _BARRIER_CYCLES
    for axis, extent in workload.extents.items():
        for count in _counts(min(system.machines, extent), system):
            ends = [-(-extent * number // count) for number in range(count + 1)]
            found = tuple(
                WorkloadPart(workload, axis, begin, end - begin) for begin, end in pairwise(ends)
            )
            cycles = _shared_cycles(choose(found[0], system.config), _contention(count, system))
            if cycles < least:
                best, least = found, cycles
    return best


def _counts(most: int, system: SystemConfig) -> Iterator[int]:
    """Numbers of parts to try: ``most``, and half of it as often as parts compete for the bus."""
    while most > 1:
        yield most
        if _contention(most, system) == 1:
            return
        most //= 2


def _contention(parts: int, system: SystemConfig) -> float:
    """Number of cycles in which the bus of ``system`` transfers a word for each of ``parts``
    machines; 1 if each has its own bandwidth.
    """
    return max(1.0, parts * 8 * system.config.bus_bytes / system.bus_bits)


def _shared_cycles(choice: Choice[Any], contention: float) -> float:
    """The estimated cycles of the best knobs, but at least the time of their transfers."""
    if not choice.estimates:
        return choice.cycles
    estimate, _ = choice.estimates[0]
    return max(estimate.cycles, contention * estimate.bus)
