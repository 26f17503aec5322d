"""The result of one benchmark: `Measurement`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """``bound_cycles`` is the lower bound for the machine, None for a layer that overlaps with
    others; ``target`` is the fraction of the bound to reach, or None. ``mismatches`` counts bytes
    that differ from the functional model's, or for a whole network elements that differ from ONNX
    Runtime's. ``cycles`` is None on a device without a clock.
    """

    name: str
    operator: str
    macs: int
    cycles: int | None
    bound_cycles: int | None
    target: float | None
    bytes_loaded: int
    bytes_stored: int
    mismatches: int
    device_seconds: float
    # As in `RunResult`; for a rate, the difference between its two programs.
    counters: dict[str, int]
    # Whether cycles and cycle counters are estimates.
    estimated: bool = False

    @property
    def of_bound(self) -> float | None:
        if self.bound_cycles is None or not self.cycles:
            return None
        return self.bound_cycles / self.cycles

    @property
    def is_reached(self) -> bool:
        return self.of_bound is None or self.target is None or self.of_bound >= self.target
