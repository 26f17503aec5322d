"""The result of one benchmark: `Measurement`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """``bound_cycles`` is what no machine of the configuration can beat; ``target`` is the share
    of it to reach, or None. ``mismatches`` counts bytes that differ from those of the functional
    model; of a whole network, elements that differ from ONNX Runtime's. ``cycles`` are None on a
    device without a clock.
    """

    name: str
    operator: str
    macs: int
    cycles: int | None
    bound_cycles: int
    target: float | None
    bytes_loaded: int
    bytes_stored: int
    mismatches: int
    device_seconds: float
    # As in `RunResult`; of a rate, the difference of its two programs.
    counters: dict[str, int]
    # Whether cycles, and what the counters say of time, are estimates.
    estimated: bool = False

    @property
    def of_bound(self) -> float | None:
        return self.bound_cycles / self.cycles if self.cycles else None

    @property
    def is_reached(self) -> bool:
        return self.of_bound is None or self.target is None or self.of_bound >= self.target
