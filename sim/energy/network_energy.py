"""The energy of a network's layers: `network_energy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from amaranth_vta.hw.memory_timing import DRAM_PAGE_BYTES
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram

from .energies import Energy, summed
from .model import PARTS, energy_by_part
from .technologies import Technology


class OpenedPages(NamedTuple):
    """Bounds on the number of DRAM pages that are opened, of `DRAM_PAGE_BYTES` each; see
    `opened_pages`.
    """

    least: int
    most: int


@dataclass(frozen=True)
class LayerEnergy:
    """The estimated energy of a layer in one run, by part of the machine (see `PARTS`), and the
    DRAM pages that it opens.
    """

    name: str
    parts: dict[str, Energy]
    pages: OpenedPages

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

    @property
    def pages(self) -> OpenedPages:
        """The DRAM pages that all layers open."""
        pages = [layer.pages for layer in self.layers]
        return OpenedPages(sum(item.least for item in pages), sum(item.most for item in pages))

    def report(self) -> dict[str, Any]:
        """All numbers, for JSON: energies in picojoules per run, and DRAM pages opened."""
        return {
            "technology": self.technology.name,
            "source": self.technology.source,
            "estimated": True,
            "page_bytes": DRAM_PAGE_BYTES,
            **_numbers(self.parts, self.pages),
            "layers": [
                {"name": layer.name, **_numbers(layer.parts, layer.pages)} for layer in self.layers
            ],
        }


def _numbers(parts: Mapping[str, Energy], pages: OpenedPages) -> dict[str, Any]:
    return {
        "pages_opened": pages._asdict(),
        "total": asdict(summed(parts.values())),
        "parts": {part: asdict(energy) for part, energy in parts.items()},
    }


def network_energy(network: NetworkProgram, technology: Technology, images: int) -> NetworkEnergy:
    """The energy of a run of ``images`` of ``network``, without the operators on the host."""
    layers = tuple(
        LayerEnergy(
            name,
            energy_by_part(network.config, technology, counts),
            OpenedPages(counts["pages_least"], counts["pages_most"]),
        )
        for name, counts in network.layer_events
    )
    return NetworkEnergy(technology, images, layers)
