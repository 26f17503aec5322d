"""Metrics derived from the counters of a run: work done, and a breakdown of the cycles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config


def completed(config: Config, counted: Mapping[str, int]) -> dict[str, int]:
    """``counted``, values of `registers.COUNTERS` by name, plus metrics derived from them:

    ``macs``, the multiplications of GEMM; ``…_bytes``, the bytes of each memory's elements in DRAM;
    ``bytes_loaded`` and ``bytes_stored``, their sums, without instructions. LOADs of WGT_4BIT count
    as if of WGT; `work` has the exact bytes.
    """
    result = dict(counted)
    result["macs"] = counted["gemm_uops"] * config.macs_per_cycle
    stored = loaded = 0
    for memory, elements, name, size in _transferred(config):
        result[name] = moved = counted[elements] * size
        if memory is isa.Memory.OUT:
            stored += moved
        else:
            loaded += moved
    return result | {"bytes_stored": stored, "bytes_loaded": loaded}


@cache
def _transferred(config: Config) -> tuple[tuple[isa.Memory, str, str, int], ...]:
    """Each memory, the names of its element counter and byte metric, and its element size."""
    return tuple(
        (memory, f"{name}_elements", f"{name}_bytes", config.memory(memory).element_bytes)
        for memory in isa.Memory
        if isa.counted_as(memory) is memory
        for name in [memory.name.lower()]
    )


@dataclass(frozen=True)
class Spent:
    """``counters`` summed over ``runs`` runs of the layer or program called ``name``."""

    name: str
    counters: Mapping[str, int]
    runs: int = 1

    @property
    def cycles(self) -> int:
        return self.counters["cycles"]

    @property
    def is_known(self) -> bool:
        """Whether there are counters that break down the cycles."""
        return "gemm_busy" in self.counters

    def share(self, counter: str) -> float:
        """Fraction of all cycles that ``counter`` counts."""
        return self.counters[counter] / self.cycles if self.cycles else 0.0

    @property
    def overlap(self) -> float | None:
        """Fraction of load's busy cycles in which GEMM is busy too; None if load is never busy."""
        busy = self.counters["load_busy"]
        return self.counters["load_and_gemm_busy"] / busy if busy else None

    @property
    def read_latency(self) -> float | None:
        """Average cycles from the request of a burst to its last word; None without bursts."""
        bursts = self.counters["read_bursts"]
        return self.counters["read_latency"] / bursts if bursts else None


def summed(spent: Sequence[Spent], name: str = "all") -> Spent:
    """The sums over all of ``spent``."""
    counters: dict[str, int] = {}
    for item in spent:
        for counter, count in item.counters.items():
            counters[counter] = counters.get(counter, 0) + count
    return Spent(name, counters, max((item.runs for item in spent), default=1))
