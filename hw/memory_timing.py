"""Timing of the memory behind the machine, in the cycles of the machine, and its page size.

Shared by simulators, the estimate of cycles (`amaranth_vta.sim.estimate`) and the compiler's cost
model, which optimizes schedules for `DDR`.
"""

from __future__ import annotations

from dataclasses import dataclass

# Bytes of a page (row) of DRAM, over all chips of the bus: a DDR3 chip of 16 bits has pages of this
# size, as do two chips of 8 bits, or two SDRAM chips of 16 bits. A burst on a bus of 64 bits stays
# within one.
DRAM_PAGE_BYTES = 2048


@dataclass(frozen=True)
class MemoryTiming:
    """Timing parameters in cycles; 0 disables a limit or a period.

    ``latency`` is the minimum from the address handshake of a read to its first word, and from the
    last data handshake of a write to its response. A ``shared`` memory transfers one word per
    cycle, read or written; otherwise one of each. No word is transferred in the last
    ``refresh_stall`` cycles of each ``refresh_period``, counted from the launch. With a ``seed``,
    latencies, gaps and backpressure on each channel are random; with a refresh too, ``latency`` is
    the greatest latency, and only pauses are random: at most ``refresh_stall`` cycles of any
    ``refresh_period``, at any time.
    """

    latency: int = 4
    shared: bool = False
    reads_outstanding: int = 0
    writes_outstanding: int = 0
    refresh_period: int = 0
    refresh_stall: int = 0
    seed: int | None = None

    @property
    def is_limited(self) -> bool:
        """Whether latencies and pauses are random up to limits."""
        return self.seed is not None and self.refresh_period > 0

    def least_cycles(self, read: int, written: int, runs: int = 1) -> int:
        """Lower bound on the cycles in which ``runs`` runs transfer this many words in total."""
        words = read + written if self.shared else max(read, written)
        if not self.refresh_period or not words:
            return words
        # A refresh after the last word of a run does not delay the run.
        moved = self.refresh_period - self.refresh_stall
        stalls = max(0, (words - runs) // moved - (runs - 1))
        return words + stalls * self.refresh_stall


IDEAL = MemoryTiming()
DDR = MemoryTiming(
    latency=48,
    shared=True,
    reads_outstanding=8,
    writes_outstanding=8,
    refresh_period=780,
    refresh_stall=30,
)
