"""The energy of a network's layers: `network_energy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from amaranth_vta.sw.runtime.network.network_program import NetworkProgram

from .energies import Energy, summed
from .model import PARTS, energy_by_part
from .technologies import Technology


@dataclass(frozen=True)
class LayerEnergy:
    """The estimated energy of a layer in one run, by part of the machine; see `PARTS`."""

    name: str
    parts: dict[str, Energy]

    @property
    def total(self) -> Energy:
        return summed(self.parts.values())


@dataclass(frozen=True)
class NetworkEnergy:
    """The estimated energy of one run of ``images``. Layers are counted as launched separately; a
    joint launch loads a few micro-ops less.
    """

    technology: Technology
    images: int
    layers: tuple[LayerEnergy, ...]

    @property
    def parts(self) -> dict[str, Energy]:
        """The energy by part, over all layers."""
        return {part: summed(layer.parts[part] for layer in self.layers) for part in PARTS}

    @property
    def total(self) -> Energy:
        return summed(layer.total for layer in self.layers)

    def report(self) -> dict[str, Any]:
        """All numbers, for JSON, in picojoules per run."""
        return {
            "technology": self.technology.name,
            "source": self.technology.source,
            "estimated": True,
            **_numbers(self.parts),
            "layers": [{"name": layer.name, **_numbers(layer.parts)} for layer in self.layers],
        }


def _numbers(parts: Mapping[str, Energy]) -> dict[str, Any]:
    return {
        "total": asdict(summed(parts.values())),
        "parts": {part: asdict(energy) for part, energy in parts.items()},
    }


def network_energy(network: NetworkProgram, technology: Technology, images: int) -> NetworkEnergy:
    """The energy of a run of ``images`` of ``network``, without the operators on the host."""
    layers = tuple(
        LayerEnergy(name, energy_by_part(network.config, technology, counts))
        for name, counts in network.layer_events
    )
    return NetworkEnergy(technology, images, layers)
