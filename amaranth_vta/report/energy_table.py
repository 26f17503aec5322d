"""A text table of estimated energies by layer and part of the machine: `energy_table`."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING

from amaranth_vta.hw.memory_timing import DRAM_PAGE_BYTES

from .text_table import text_table

if TYPE_CHECKING:
    from amaranth_vta.sim.energy.energies import Energy
    from amaranth_vta.sim.energy.network_energy import NetworkEnergy

ENERGY_HEADS = ("", "typical", "from", "to")
_INCLUDED = (
    "An estimate: counts of events times energies per event. It includes arithmetic, "
    "scratchpads and DRAM, and excludes clock tree, registers, control, leakage and the host."
)


def energy_rows(energies: Mapping[str, Energy]) -> list[tuple[str, ...]]:
    """Per item: name, typical energy and band, in microjoules."""
    return [(name, *microjoules(energy)) for name, energy in energies.items()]


def microjoules(energy: Energy) -> tuple[str, ...]:
    """The typical energy and the ends of the band."""
    return tuple(f"{pj / 1e6:,.3f}" for pj in (energy.typical, energy.low, energy.high))


def energy_sections(energy: NetworkEnergy) -> dict[str, Mapping[str, Energy]]:
    """The two tables, by the head of their first column."""
    return {"layer": {layer.name: layer.total for layer in energy.layers}, "part": energy.parts}


def energy_notes(energy: NetworkEnergy) -> tuple[str, ...]:
    """DRAM pages, the events that count, and the source of the energies per event."""
    least, most = energy.pages
    charged = "charged apart from" if energy.technology.activation.high else "included in"
    return (
        f"DRAM pages of {DRAM_PAGE_BYTES // 1024} KiB opened: {least:,} to {most:,}; "
        f"their energy is {charged} that of bytes.",
        _INCLUDED,
        f"Energies per event: {energy.technology.source}.",
    )


def energy_heading(energy: NetworkEnergy) -> str:
    """The unit, the technology and the number of images."""
    images = "image" if energy.images == 1 else f"run of {energy.images} images"
    return f"Energy per {images} in µJ, estimated for {energy.technology.name}"


def energy_table(energy: NetworkEnergy, width: int | None = 80) -> str:
    """The energy of each layer and of each part of the machine, with their totals."""
    total = ("all", *microjoules(energy.total))
    tables = [
        text_table((title, *ENERGY_HEADS[1:]), energy_rows(items), total, width=width)
        for title, items in energy_sections(energy).items()
    ]
    notes = [fill(note, width or 80) for note in energy_notes(energy)]
    return "\n".join([energy_heading(energy), tables[0], "", tables[1], *notes])
