"""The interface between operators and the tuner; builds operators with the chosen knobs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any, Protocol, TypeVar, runtime_checkable

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import BuildError, Function, build
from amaranth_vta.sw.compiler.environment import Environment, get_env
from amaranth_vta.sw.compiler.te.tensor import Tensor

from .records import recorded_knobs
from .search import Choice

Knobs = TypeVar("Knobs")
# A schedule, and the arguments of its function.
Scheduled = tuple[te.Schedule, list[Tensor]]
# Maximum number of knobs to try: some that fit by the formula may not fit when built.
_ATTEMPTS = 20
# Cycles that a fusion must save: estimates are no more exact.
_LEAST_GAIN = 10


class NoScheduleFits(ValueError):
    """No schedule of an operator fits the scratchpads of a configuration."""


class Workload(Hashable, Protocol[Knobs]):
    """An operator for tensors of given sizes; immutable and hashable. ``Knobs`` is a dataclass of
    numbers and flags that describes one of its schedules."""

    def scheduled(self, env: Environment, knobs: Knobs) -> Scheduled:
        """The schedule for ``knobs``; whether it fits is known only after building it."""

    def considered(self, config: Config) -> Choice[Knobs]:
        """The knobs worth trying on the machine of ``config``, ranked by estimated cycles."""


@runtime_checkable
class HasParameters(Protocol):
    """A workload whose function takes some of its constants as an argument."""

    def without_parameters(self) -> Hashable:
        """The workload with placeholders for these constants; its schedules are the same."""


def schedule_of(workload: Hashable) -> Hashable:
    """A key for the schedules and functions of a workload, the same for workloads that differ only
    in constants passed as arguments.
    """
    return workload.without_parameters() if isinstance(workload, HasParameters) else workload


def choose(workload: Workload[Any], config: Config) -> Choice[Any]:
    """`Workload.considered`, memoized, since networks repeat their layers."""
    return _considered(schedule_of(workload), config)


def explain(workload: Workload[Any], env: Environment | None = None) -> Choice[Any]:
    """The knobs considered for ``workload`` on the machine of ``env``, with their estimated cycles,
    best first: the operator is built with the first that fits. Prints as a table.
    """
    return choose(workload, (env or get_env()).config)


def is_faster(
    fused: Workload[Any], parts: Sequence[Workload[Any]], config: Config, share: float = 1.0
) -> bool:
    """Whether ``fused`` is estimated to take fewer cycles than a ``share`` of the cycles that its
    ``parts`` take in sequence.
    """
    apart = sum(choose(part, config).cycles for part in parts)
    return choose(fused, config).cycles < share * apart - _LEAST_GAIN


@cache
def _considered(workload: Any, config: Config) -> Choice[Any]:
    found: Choice[Any] = workload.considered(config)
    return found


def tuned(workload: Workload[Knobs], env: Environment, knobs: Knobs | None, name: str) -> Function:
    """Build the function ``name`` of a workload with ``knobs``; by default with knobs recorded for
    it (`knobs_from`), or else with the best that fit.

    Raises `BuildError` if ``knobs`` do not fit, and `NoScheduleFits` if none fit.
    """

    def built(chosen: Knobs) -> Function:
        schedule, args = workload.scheduled(env, chosen)
        return build(schedule, args, name=name, env=env)

    if knobs is not None:
        return built(knobs)
    reason: Exception | None = None
    recorded = recorded_knobs(workload, env.config)
    if recorded is not None:
        # Knobs of another version may have another number of extents.
        with suppress(BuildError, ValueError):
            return built(recorded)
    for ranked in islice(choose(workload, env.config).ranked, _ATTEMPTS):
        try:
            return built(ranked)
        except BuildError as error:
            reason = error
    if reason is None:
        raise NoScheduleFits(f"{name}: the scratchpads are too small for a tile of one element")
    raise NoScheduleFits(f"{name}: no schedule fits: {reason}") from reason
