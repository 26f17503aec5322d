"""Energies with a band: `Energy`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Energy:
    """An energy in picojoules, or a factor of energies: the ``typical`` one, and the band from
    ``low`` to ``high``.
    """

    low: float = 0.0
    typical: float = 0.0
    high: float = 0.0

    def __add__(self, other: Energy) -> Energy:
        return Energy(self.low + other.low, self.typical + other.typical, self.high + other.high)

    def __mul__(self, factor: float | Energy) -> Energy:
        """Multiply each value by ``factor``, or by the value of the same name."""
        if not isinstance(factor, Energy):
            factor = Energy(factor, factor, factor)
        return Energy(self.low * factor.low, self.typical * factor.typical, self.high * factor.high)

    @property
    def band(self) -> Energy:
        """All values relative to the typical one."""
        return self * (1 / self.typical)


def summed(energies: Iterable[Energy]) -> Energy:
    """The sum of ``energies``; bands add up, since their errors have common causes."""
    return sum(energies, Energy())
