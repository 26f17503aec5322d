"""Timing of the memory behind a simulated machine.

Simulators know a memory only by its `MemoryTiming`. The memory model is implemented in Python
(axi_memory.py) and in C++ (rtl/harness.cpp), with equal cycle counts for equal timing.
"""

from __future__ import annotations

from amaranth_vta.errors import VtaError
from amaranth_vta.hw.memory_timing import DDR, IDEAL
from amaranth_vta.hw.memory_timing import MemoryTiming as MemoryTiming
from amaranth_vta.sim.estimate.contract import MemoryContract


class ProtocolError(RuntimeError):
    """A bus protocol violation by the machine; the message names the channel and the cycle."""


class DramError(VtaError, ValueError):
    """An unknown memory model."""


TIMINGS = {"ideal": IDEAL, "ddr": DDR}


def memory_timing(name: str) -> MemoryTiming:
    """The timing named ``ideal``, ``ddr`` or ``random:SEED``; raises `DramError` for other names.

    The seed also determines whether reads and writes share the bus, and the maximum in flight.
    After ``random:SEED`` and a comma, a `MemoryContract` limits latencies and pauses. Raises
    `ContractError` for a wrong one.
    """
    if name in TIMINGS:
        return TIMINGS[name]
    text, limited, contract = name.partition(",")
    kind, _, seed = text.partition(":")
    if kind != "random" or not seed.isdecimal():
        raise DramError(
            f"{name!r} is not a memory model: there are {', '.join(TIMINGS)} and random:SEED, "
            "with a whole number as the seed"
        )
    dice = Dice(int(seed))
    if limited:
        promised = MemoryContract.parse(contract)
        if promised.response != promised.latency or len(promised.pauses) > 1:
            raise DramError(
                f"{name!r}: a random memory has one latency, and either bandwidth or refresh"
            )
        stall, period = (*promised.pauses, (0, 1))[0]
        return MemoryTiming(
            latency=promised.latency,
            shared=dice.draw(2) == 1,
            refresh_period=period,
            refresh_stall=stall,
            seed=int(seed),
        )
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
