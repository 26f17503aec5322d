"""The least cycles that a machine of a configuration can take: `bound_cycles`."""

from __future__ import annotations

from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sw.runtime.work import Work


def bound_cycles(work: Work, dram: str, runs: int = 1) -> int:
    """The least cycles of a program in ``runs`` runs: the larger of compute and of bus time with
    the memory ``dram``."""
    bus = memory_timing(dram).least_cycles(work.words_read, work.words_written, runs)
    return max(work.compute_cycles, bus)
