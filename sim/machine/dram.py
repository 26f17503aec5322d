"""Timing of the memory behind a simulated machine.

Simulators know a memory only by its `MemoryTiming`. The memory model is implemented in Python
(axi_memory.py) and in C++ (rtl/harness.cpp), with equal cycle counts for equal timing.
"""

from __future__ import annotations

from dataclasses import dataclass

from amaranth_vta.errors import VtaError


class ProtocolError(RuntimeError):
    """A bus protocol violation by the machine; the message names the channel and the cycle."""


class DramError(VtaError, ValueError):
    """An unknown memory model."""


@dataclass(frozen=True)
class MemoryTiming:
    """Timing parameters in cycles; 0 disables a limit or a period.

    ``latency`` is the minimum from the address handshake of a read to its first word, and from the
    last data handshake of a write to its response. A ``shared`` memory transfers one word per
    cycle, read or written; otherwise one of each. No word is transferred in the last
    ``refresh_stall`` cycles of each ``refresh_period``, counted from the launch. With a ``seed``,
    latencies, gaps and backpressure on each channel are random.
    """

    latency: int = 4
    shared: bool = False
    reads_outstanding: int = 0
    writes_outstanding: int = 0
    refresh_period: int = 0
    refresh_stall: int = 0
    seed: int | None = None

    def least_cycles(self, read: int, written: int, runs: int = 1) -> int:
        """Lower bound on the cycles in which ``runs`` runs transfer this many words in total."""
        words = read + written if self.shared else max(read, written)
        if not self.refresh_period or not words:
            return words
        # A run need not wait for a stall after its last word.
        moved = self.refresh_period - self.refresh_stall
        stalls = max(0, (words - runs) // moved - (runs - 1))
        return words + stalls * self.refresh_stall


TIMINGS = {
    "ideal": MemoryTiming(),
    "ddr": MemoryTiming(
        latency=48,
        shared=True,
        reads_outstanding=8,
        writes_outstanding=8,
        refresh_period=780,
        refresh_stall=30,
    ),
}


def memory_timing(name: str) -> MemoryTiming:
    """The timing named ``ideal``, ``ddr`` or ``random:SEED``; raises `DramError` for other names.

    The seed also determines whether reads and writes share the bus, and the maximum in flight.
    """
    if name in TIMINGS:
        return TIMINGS[name]
    kind, _, seed = name.partition(":")
    if kind != "random" or not seed.isdecimal():
        raise DramError(
            f"{name!r} is not a memory model: there are {', '.join(TIMINGS)} and random:SEED, "
            "with a whole number as the seed"
        )
    dice = Dice(int(seed))
    return MemoryTiming(
        shared=dice.draw(2) == 1,
        reads_outstanding=1 + dice.draw(8),
        writes_outstanding=1 + dice.draw(8),
        seed=int(seed),
    )


class Dice:
    """A small random number generator (xorshift64*), also in C++ in rtl/harness.cpp."""

    MASK = (1 << 64) - 1

    def __init__(self, seed: int) -> None:
        self.state = (seed * 0x9E3779B97F4A7C15 + 0x2545F4914F6CDD1D) & self.MASK or 1

    def draw(self, sides: int) -> int:
        """A random number from 0 to ``sides`` - 1."""
        x = self.state
        x ^= x >> 12
        x = (x ^ x << 25) & self.MASK
        x ^= x >> 27
        self.state = x
        return ((x * 0x2545F4914F6CDD1D & self.MASK) >> 33) % sides
