"""Factors of energies between CMOS processes: `energy_scaling`.

Equations and coefficients: A. Stillmaker and B. Baas, Scaling equations for the accurate prediction
of CMOS device performance from 180 nm to 7 nm, Integration, the VLSI Journal 58 (2017), pp. 74-81,
table 5. Per node, the energy of an operation is a polynomial of second order in the supply voltage,
up to a constant factor.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

from .energies import Energy

_65NM = (3.755, -4.398, 1.975)
# Coefficients of the square of the voltage, of the voltage, and of 1, by node in nanometers. At
# 65 nm and above, both kinds of transistors have the same.
_HIGH_PERFORMANCE = {
    65: _65NM,
    45: (1.018, -0.3107, 0.1539),
    32: (0.8367, -0.4341, 0.1701),
    20: (0.373, -0.1582, 0.04104),
}
_LOW_POWER = {
    65: _65NM,
    45: (1.103, -0.362, 0.2767),
    32: (0.9559, -0.7823, 0.471),
    20: (0.2632, -0.14, 0.06841),
}


class Process(NamedTuple):
    """A CMOS process: its node in nanometers and its supply voltage."""

    node: int
    volts: float


def power_law(at: float, one: tuple[float, float], other: tuple[float, float]) -> float:
    """The value at ``at`` of the power law through two points."""
    (x, y), (other_x, other_y) = one, other
    return y * (other_y / y) ** (log(at / x) / log(other_x / x))


def energy_scaling(source: Process, target: Process) -> Energy:
    """The factor of energies from ``source``, at a published node, to ``target``, between two.

    Typical is a power law between the factors to the published nodes on both sides, with
    high-performance transistors. The band is the range of these factors for high-performance and
    low-power transistors.
    """
    above = min(node for node in _HIGH_PERFORMANCE if node >= target.node)
    below = max(node for node in _HIGH_PERFORMANCE if node < target.node)
    found = [
        (node, _energy(kind[node], target.volts) / _energy(kind[source.node], source.volts))
        for kind in (_HIGH_PERFORMANCE, _LOW_POWER)
        for node in (above, below)
    ]
    factors = [factor for _, factor in found]
    return Energy(min(factors), power_law(target.node, found[0], found[1]), max(factors))


def _energy(coefficients: tuple[float, float, float], volts: float) -> float:
    """The energy of an operation, relative to the same one at another node or voltage."""
    square, linear, constant = coefficients
    return square * volts**2 + linear * volts + constant
