"""Print energies per event, and the estimated energy of networks and the DRAM pages that they open
for machines with BATCH 1 and 2, as Markdown.

    python benchmarks/energy.py [--write | --check]
    python benchmarks/energy.py [NETWORK ...]

``--write`` puts the tables into docs/energy.md, ``--check`` exits with 1 if the page has others.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pages
from tables import head, row

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.memory_timing import DRAM_PAGE_BYTES
from amaranth_vta.networks import generate
from amaranth_vta.session import Session
from amaranth_vta.sim.energy.energies import Energy
from amaranth_vta.sim.energy.technologies import TECHNOLOGIES, Technology

_NETWORKS = ("resnet18", "mobilenetv2", "bert-tiny")
_PAGE = "docs/energy.md"
_MARKERS = tuple(
    f"<!-- {what}, made by `python benchmarks/energy.py --write` -->\n"
    for what in ("energies per event", "energies of networks", "DRAM pages of networks")
)
_PARTS = ("WGT", "ACC", "DRAM")
# Technologies that charge activations apart from bytes.
_ACTIVATED = tuple(item.name for item in TECHNOLOGIES.values() if item.activation.high)
_ONE = PRESETS["pynq-extended"]
_TWO = replace(
    _ONE,
    log_batch=1,
    log_inp_buff_size=_ONE.log_inp_buff_size + 1,
    log_acc_buff_size=_ONE.log_acc_buff_size + 1,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NETWORK", help=", ".join(_NETWORKS))
    pages.add_options(parser, _PAGE)
    chosen = parser.parse_args()
    tables = dict(zip(_MARKERS, (_energies_of_events(), *_networks(chosen.names)), strict=True))
    wrong = False
    for marker, lines in tables.items():
        print(*lines, "", sep="\n")
        wrong |= pages.put(chosen, marker, lines, _PAGE)
    return int(wrong)


def _networks(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The tables of the energy of networks, and of the pages of DRAM that they open."""
    energies = head("network", *("BATCH", "technology", "mJ", "band", "pJ per MAC"), *_PARTS)
    pages = head("network", "BATCH", "MB", "KiB per page", "pages", *_ACTIVATED)
    for name in names or _NETWORKS:
        model = generate(name).sized
        for config in (_ONE, _TWO):
            with Session(model, config) as session:
                for technology in TECHNOLOGIES:
                    cells = _energy(session, technology)
                    energies.append(row(name, str(config.batch), technology, *cells))
                pages.append(row(name, str(config.batch), *_pages(session)))
    return energies, pages


def _energy(session: Session, technology: str) -> tuple[str, ...]:
    """Energy per image with its band, and per MAC, and the shares of parts."""
    energy = session.energy(technology)
    total, macs = energy.total, sum(layer.macs_per_run for layer in session.layers)
    low, typical, high = (pj / energy.images / 1e9 for pj in (total.low, total.typical, total.high))
    shares = (energy.parts[part].typical / total.typical for part in _PARTS)
    return (
        *(f"{typical:.2f}", f"{low:.2f} to {high:.2f}", f"{total.typical / macs:.1f}"),
        *(f"{share:.0%}" for share in shares),
    )


def _pages(session: Session) -> tuple[str, ...]:
    """Bytes and pages of DRAM per image, and the typical share of activations in the energy."""
    counts = sum((counts for _, counts in session.program.layer_events), Counter())
    moved = (counts["bytes_read"] + counts["bytes_written"]) / session.images_per_run
    least, most = (counts[f"pages_{end}"] / session.images_per_run for end in ("least", "most"))
    shares = []
    for technology in _ACTIVATED:
        energy = session.energy(technology)
        activations = energy.pages.least * energy.technology.activation.typical
        shares.append(f"{activations / energy.total.typical:.1%}")
    return (
        f"{moved / 1e6:.2f}",
        f"{moved / most / 1024:.2f} to {moved / least / 1024:.2f}",
        f"{least:,.0f} to {most:,.0f}",
        *shares,
    )


def _energies_of_events() -> list[str]:
    columns = [_events(technology) for technology in TECHNOLOGIES.values()]
    rows = (row(event, *(_with_band(item[event]) for item in columns)) for event in columns[0])
    return [*head("pJ", *TECHNOLOGIES), *rows]


def _events(technology: Technology) -> dict[str, Energy]:
    sizes = {"8 KiB": 8 << 10, "32 KiB": 32 << 10, "1 MiB": 1 << 20}
    return {
        "addition, 8 bits": technology.addition(8),
        "addition, 32 bits": technology.addition(32),
        "multiplication, 8 bits": technology.multiplication(8, 8),
        "multiplication, 32 bits": technology.multiplication(32, 32),
        **{f"64 bits of {name}": technology.sram_byte(size) * 8 for name, size in sizes.items()},
        "64 bits of DRAM": technology.dram_byte * 8,
        f"{DRAM_PAGE_BYTES // 1024} KiB page of DRAM opened": technology.activation,
    }


def _with_band(energy: Energy) -> str:
    if energy.low == energy.high:
        return f"{energy.typical:.3g}"
    low, typical, high = (
        f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
        for value in (energy.low, energy.typical, energy.high)
    )
    return f"{typical} ({low} to {high})"


if __name__ == "__main__":
    sys.exit(main())
