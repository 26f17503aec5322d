"""What one benchmark measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """``bound_cycles`` is what no machine of the configuration can beat; ``target`` the share of
    it that is asked for. ``mismatches`` counts elements that differ from the model's. What the
    device or the benchmark does not know is None: the functional model has no cycles.
    """

    name: str
    operator: str
    macs: int
    cycles: int | None
    bound_cycles: float
    target: float
    bytes_loaded: int
    bytes_stored: int
    mismatches: int
    device_seconds: float
    # As in `RunResult`; of a rate, the difference of its two programs.
    counters: dict[str, int]

    @property
    def of_bound(self) -> float | None:
        return self.bound_cycles / self.cycles if self.cycles else None

    @property
    def is_reached(self) -> bool:
        return self.of_bound is None or self.of_bound >= self.target
