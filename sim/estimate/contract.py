"""The promises of a memory: `MemoryContract`, for which the device `bound` bounds cycles."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Self

from amaranth_vta.errors import VtaError
from amaranth_vta.hw.memory_timing import MemoryTiming

# Largest number in a contract, and largest common period of its pauses: sums stay within 63 bits.
_MOST, _LONGEST_PERIOD = 100_000, 1_000_000
_FORM = "latency=CYCLES[,response=CYCLES][,bandwidth=WORDS/CYCLES][,refresh=CYCLES/PERIOD]"


class ContractError(VtaError, ValueError):
    """A memory contract that cannot be read, or that promises nothing."""


@dataclass(frozen=True)
class MemoryContract:
    """Promises of a memory, in cycles of the machine.

    The first word of a read burst is ready at most ``latency`` cycles after its address was
    offered, and the response to a burst is given at most ``response`` cycles after its last word
    was taken. While a word is ready to be read, or offered to be written, one is transferred,
    except for pauses: of any C consecutive cycles with ``bandwidth`` (W, C) at most C - W, and of
    any P with ``refresh`` (S, P) S more. Addresses are accepted at once.
    """

    latency: int
    response: int
    bandwidth: tuple[int, int] = (1, 1)
    refresh: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        if not all(0 <= number <= _MOST for number in (self.latency, self.response)):
            raise ContractError(f"latency and response of a memory are 0 to {_MOST:,} cycles")
        for name, (part, whole) in (("bandwidth", self.bandwidth), ("refresh", self.refresh)):
            if not 0 <= part <= whole or not 1 <= whole <= _MOST:
                raise ContractError(
                    f"{name}={part}/{whole}: the second number is 1 to {_MOST:,}, and the first "
                    "one at most as large"
                )
        if self.rate <= 0:
            raise ContractError(f"a memory with {self} need never transfer a word")
        if self.scale > _LONGEST_PERIOD:
            raise ContractError(
                f"the periods of {self} have a common multiple of {self.scale:,} cycles; at most "
                f"{_LONGEST_PERIOD:,} are supported"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """The contract of a text such as ``latency=48,bandwidth=1/2,refresh=30/780``; ``response``
        is ``latency`` unless given. Raises `ContractError`.
        """
        found: dict[str, tuple[int, int]] = {}
        for item in text.split(","):
            match = re.fullmatch(
                r"(latency|response|bandwidth|refresh)=(\d{1,9})(?:/(\d{1,9}))?", item
            )
            is_ratio = match is not None and match[1] in ("bandwidth", "refresh")
            if match is None or (match[3] is not None and not is_ratio):
                raise ContractError(f"{item!r} is no promise of a memory; they are {_FORM}")
            if match[1] in found:
                raise ContractError(f"{match[1]} is given twice")
            if match[1] == "refresh" and match[3] is None:
                raise ContractError(f"{item!r} lacks the period: refresh=CYCLES/PERIOD")
            found[match[1]] = int(match[2]), int(match[3] or 1)
        if "latency" not in found:
            raise ContractError(f"{text!r} lacks the latency; a contract is {_FORM}")
        latency = found["latency"][0]
        return cls(
            latency,
            found.get("response", (latency, 1))[0],
            found.get("bandwidth", (1, 1)),
            found.get("refresh", (0, 1)),
        )

    @classmethod
    def of(cls, timing: MemoryTiming) -> Self:
        """The contract that a memory with ``timing`` keeps. Raises `ContractError` if its latencies
        are random without a limit.
        """
        if timing.seed is not None and not timing.is_limited:
            raise ContractError("a memory with random latencies keeps no contract")
        refresh = (timing.refresh_stall, timing.refresh_period) if timing.refresh_period else (0, 1)
        return cls(timing.latency, timing.latency, refresh=refresh)

    def __str__(self) -> str:
        parts = [f"latency={self.latency}", f"response={self.response}"]
        parts += [f"{name}={part}/{whole}" for name, (part, whole) in self._ratios.items()]
        return ",".join(parts)

    @property
    def _ratios(self) -> dict[str, tuple[int, int]]:
        return {"bandwidth": self.bandwidth, "refresh": self.refresh}

    @property
    def pauses(self) -> list[tuple[int, int]]:
        """Cycles without a transfer, each with the period in which there are so many."""
        words, cycles = self.bandwidth
        return [pause for pause in ((cycles - words, cycles), self.refresh) if pause[0]]

    @property
    def scale(self) -> int:
        """Common multiple of the periods."""
        return math.lcm(*(period for _, period in self.pauses))

    @property
    def rate(self) -> int:
        """Cycles of ``scale`` in which words are transferred."""
        return self.scale - sum(self.scale // period * stall for stall, period in self.pauses)

    @property
    def credit(self) -> int:
        """Cycles that can pass at once without a transfer."""
        return sum(stall for stall, _ in self.pauses)
