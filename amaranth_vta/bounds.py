"""Lower bound on the cycles of a program: `bound_cycles`."""

from __future__ import annotations

from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sw.runtime.work import Work


def bound_cycles(work: Work, dram: str, runs: int = 1) -> int:
    """Lower bound on the cycles of a program executed ``runs`` times: the larger of compute time
    and bus time with the memory model ``dram``.
    """
    bus = memory_timing(dram).least_cycles(work.words_read, work.words_written, runs)
    return max(work.compute_cycles, bus)
