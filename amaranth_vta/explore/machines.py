"""Candidate machines of a design space, with checks of legality, area and limits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from amaranth_vta.fpga.area import Area
from amaranth_vta.fpga.chips import RESOURCES
from amaranth_vta.hw.config import Config, ConfigError
from amaranth_vta.hw.system.parameters import SystemConfig

from .spec import MACHINE_COUNT, MEMORY_BUS, Spec

ILLEGAL, OVER_LIMIT = "illegal", "over limit"
_NUMBER = re.compile(r"(?<![A-Za-z_\d])[\d.,]*\d")
_PARENTHESES = re.compile(r" \([^)]*\)")


@dataclass(frozen=True)
class CandidateMachine:
    """A combination of parameter ``values``, in the order of the parameters.

    ``system`` has one or several machines; None if the combination is illegal. ``status`` is empty
    if the machine should be evaluated, else `ILLEGAL` or `OVER_LIMIT`, with the ``reason``.
    """

    values: tuple[int, ...]
    system: SystemConfig | None
    area: Area | None
    status: str = ""
    reason: str = ""

    @property
    def config(self) -> Config | None:
        """The configuration of each machine."""
        return self.system.config if self.system is not None else None


def machine_of(spec: Spec, values: tuple[int, ...]) -> CandidateMachine:
    """The candidate machine of a combination, checked without running anything."""
    chosen = dict(zip(spec.parameters, values, strict=True))
    base = spec.base.to_dict()
    machines, bus_bits = chosen.pop(MACHINE_COUNT, 1), chosen.pop(MEMORY_BUS, 0)
    if "LOG_BLOCK" in chosen:
        chosen |= dict.fromkeys(("LOG_BLOCK_IN", "LOG_BLOCK_OUT"), chosen.pop("LOG_BLOCK"))
    try:
        system = SystemConfig(Config.from_dict({**base, **chosen}), machines, bus_bits)
    except ConfigError as error:
        return CandidateMachine(values, None, None, ILLEGAL, str(error))
    area = spec.limits.chip.area_of(system)
    reason = "; ".join(_exceeded(spec, area))
    return CandidateMachine(values, system, area, OVER_LIMIT if reason else "", reason)


def _exceeded(spec: Spec, area: Area) -> Iterator[str]:
    chip, most = spec.limits.chip, spec.limits.most
    for name in RESOURCES:
        needed, there = getattr(area, name), getattr(chip, name)
        if needed > there:
            yield f"{name} {needed:,g}, more than the {there:,g} of {chip.name}"
        elif needed > most.get(name, needed):
            yield f"{name} {needed:,g}, more than limits.{name} = {most[name]:,g}"
    share = chip.share(area)
    if most.get("area", 1) < share <= 1:
        yield f"area {share:.2f}, more than limits.area = {most['area']:g}"


def exceeded(spec: Spec, metrics: Mapping[str, float], host_share: float) -> str:
    """The limits that a run exceeds, as one line; empty if none."""
    reasons = [
        f"{name} {metrics[name]:,g}, more than limits.{name} = {most:,g}"
        for name, most in spec.limits.most.items()
        if name in metrics and metrics[name] > most
    ]
    if host_share > spec.limits.host_share:
        reasons.append(
            f"the host does {host_share:.1%} of the MACs, more than limits.host_share = "
            f"{spec.limits.host_share:g}"
        )
    return "; ".join(reasons)


def kind_of(reason: str) -> str:
    """The first clause of ``reason``, with numbers replaced by N, to count similar reasons."""
    clause = _PARENTHESES.sub("", re.split(r"[;:] ", reason)[0])
    return _NUMBER.sub("N", clause)
