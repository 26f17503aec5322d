"""Measurements of the operators and launches of a network, and their lower bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amaranth_vta.sim.machine.dram import memory_timing

if TYPE_CHECKING:  # imports NumPy, which `vta --help` does without
    from amaranth_vta.sw.runtime.work import Work


@dataclass(frozen=True)
class LayerReport:
    """An operator of the network, and its measurements over all runs so far.

    ``placed_on`` is ``machine`` or ``host``, with the ``reason`` for the latter. ``macs`` counts
    the network's MACs, without channel padding; ``cycles`` and ``utilization`` are None on devices
    without a clock. ``macs_per_run`` and ``host_macs``, the MACs on the host, are for one run.
    ``counters`` are as in `RunResult`, empty for the host. ``bound_cycles`` is None for a layer in
    a launch of several layers: these overlap, so that only the launch has a lower bound.
    """

    name: str
    operator: str
    placed_on: str
    reason: str
    macs_per_run: int
    macs: int
    cycles: int | None
    bound_cycles: int | None
    utilization: float | None
    bytes_loaded: int
    bytes_stored: int
    runs: int
    counters: dict[str, int]
    host_macs: int = 0


@dataclass(frozen=True)
class LaunchReport:
    """A launch of the machine and its measurements over all ``runs``: ``layers`` is the number of
    layers in the launch, ``cycles`` is None on a device without a clock, and ``bound_cycles`` is
    the lower bound on its cycles.
    """

    name: str
    layers: int
    runs: int
    cycles: int | None
    bound_cycles: int


def bound_cycles(
    work: Work, dram: str, runs: int = 1, machines: int = 1, bus_bytes: int = 0
) -> int:
    """Lower bound on the cycles of a program executed ``runs`` times: the larger of compute time
    and bus time with the memory model ``dram``.

    With ``machines`` that divide the work, or that run as many programs at once, it is the share of
    one machine; their shared bus has ``bus_bytes``.
    """
    own = work.config.bus_bytes
    shared = min(bus_bytes or own, machines * own)
    read, written = (words * own // shared for words in (work.words_read, work.words_written))
    bus = memory_timing(dram).least_cycles(read, written, runs)
    return max(work.compute_cycles // machines, bus)
