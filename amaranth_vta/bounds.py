"""What no machine of a configuration can beat: `bound_cycles`."""

from __future__ import annotations

from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sw.runtime.work import Work


def bound_cycles(work: Work, dram: str, runs: int = 1) -> int:
    """The larger of compute and bus time of a program with the memory ``dram``, in ``runs``."""
    bus = memory_timing(dram).least_cycles(work.words_read, work.words_written, runs)
    return max(work.compute_cycles, bus)
