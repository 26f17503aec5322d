"""The report of a session, a folder with a self-contained HTML page: `report_files`."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING

from amaranth_vta.report.chart import legend, stacked_bars
from amaranth_vta.report.cycles_table import UNKNOWN
from amaranth_vta.report.energy_table import (
    ENERGY_HEADS,
    energy_heading,
    energy_notes,
    energy_rows,
    energy_sections,
)
from amaranth_vta.report.html import html_page, html_table
from amaranth_vta.report.layer_report import LayerReport
from amaranth_vta.report.layer_table import HEADS, OVERLAP, layer_row, overlap, per_run, whole
from amaranth_vta.report.text_table import counted
from amaranth_vta.sw.runtime.counters import Spent, summed

if TYPE_CHECKING:
    from amaranth_vta.sim.energy.network_energy import NetworkEnergy
    from amaranth_vta.sim.trace.perfetto import Timeline

    from .session import Session

# Marks a folder as a report, which may be overwritten by another.
PAGE = "report.html"
_TIMELINE, _FIGURES = "timeline.json.gz", "report.json"
# Indices of the numeric columns of `HEADS`, in the order of the page.
_NUMBERS = (3, 4, 5, 2)
# Clock frequency for times on the page.
_MHZ = 100
NOT_COMPARED = "not compared; --check compares with ONNX Runtime"


@dataclass(frozen=True)
class Provenance:
    """The origin of a report: the ``command``, the ``version`` of the software and the ``date``.
    ``comparison`` says how results compare with ONNX Runtime's, empty without ``--check``;
    ``is_wrong`` is set if they differ.
    """

    command: str
    version: str
    date: datetime
    comparison: str = ""
    is_wrong: bool = False


def report_files(
    session: Session,
    title: str,
    dram: str,
    provenance: Provenance,
    timeline: Timeline | None,
    trace: str | None,
    technology: str | None = None,
) -> dict[str, bytes]:
    """The files of the report, by name; ``provenance`` has the command and the result of its
    checks. With a ``technology``, it has energies, as in `Session.energy`.

    ``trace`` is the path of the ``timeline``, relative to the report, if it is written separately;
    if None, the timeline is one of the files.
    """
    links = {_FIGURES: "all numbers as JSON, counters included"}
    numbers = session.report(technology)
    files = {_FIGURES: (json.dumps(numbers, indent=2, allow_nan=False) + "\n").encode()}
    if timeline is not None:
        links[trace or _TIMELINE] = "every instruction on a timeline: open it in ui.perfetto.dev"
        if trace is None:
            packed = io.BytesIO()
            timeline.write(packed, compressed=True)
            files[_TIMELINE] = packed.getvalue()
    energy = session.energy(technology) if technology else None
    text = page(session, title, dram, provenance, links, energy).encode(errors="replace")
    return {PAGE: text, **files}


def page(
    session: Session,
    title: str,
    dram: str,
    provenance: Provenance,
    links: Mapping[str, str],
    energy: NetworkEnergy | None = None,
) -> str:
    """The page as HTML; ``links`` maps files in the same folder to descriptions."""
    numbers, spent = session.report(), session.spent
    per = per_run(session.images_per_run, session.layers)
    parts = [f"<h1>{escape(title)}</h1>", _summary(session, dram, provenance)]
    if numbers["skipped"] is not None:
        parts.append(
            f'<p class="wrong">{numbers["skipped"]} passed tokens without working: the results of '
            "this run are wrong.</p>"
        )
    if session.label_accuracy is not None:
        parts.append(f"<p>{escape(str(session.label_accuracy))}.</p>")
    if not all(item.is_known for item in spent):
        parts.append(f"<p>{escape(UNKNOWN)}</p>")
    elif spent:
        timed = [layer for layer in session.layers if layer.counters.get("cycles")]
        parts += [
            "<h2>Where the cycles went</h2>",
            *(_bars(session, timed, per) if timed else ()),
            _shares(spent),
        ]
    parts += [
        "<h2>Layers</h2>",
        f"<p>{per}.{f' {OVERLAP}' if overlap(session.layers) else ''}</p>",
        _layers(session),
        *([] if energy is None else _energy(energy)),
        "<h2>Configuration</h2>",
        html_table(
            ("parameter", "value"),
            (
                (item.name.upper(), getattr(session.config, item.name))
                for item in fields(session.config)
            ),
        ),
        "<h2>Files</h2>",
        "<ul>",
        *(
            f'<li><a href="{escape(name)}">{escape(name)}</a>: {escape(words)}</li>'
            for name, words in links.items()
        ),
        "</ul>",
    ]
    return html_page(title, parts)


def _energy(energy: NetworkEnergy) -> list[str]:
    """Energies by layer and by part of the machine."""
    total, notes = {"all": energy.total}, " ".join(energy_notes(energy))
    return [
        "<h2>Energy</h2>",
        f"<p>{escape(energy_heading(energy))}. {escape(notes)}</p>",
        *(
            html_table((title, *ENERGY_HEADS[1:]), energy_rows({**items, **total}))
            for title, items in energy_sections(energy).items()
        ),
    ]


def _bars(session: Session, timed: Sequence[LayerReport], per: str) -> list[str]:
    """The bar chart of layers with measured cycles."""
    return [
        f"<p>{per}. A bar is as long as the cycles of its layer, in the colors of what compute "
        "does; ALU that overlaps with GEMM is not shown.</p>",
        f"<p>{legend()}</p>",
        stacked_bars(timed, session.config.macs_per_cycle),
    ]


def _summary(session: Session, dram: str, provenance: Provenance) -> str:
    """A list of facts about the run; numbers are per run of the network."""
    config = session.config
    macs = f"{config.batch}×{config.block_in}×{config.block_out} MACs per cycle"
    result = escape(provenance.comparison or NOT_COMPARED)
    facts = {
        "result": f'<span class="wrong">{result}</span>' if provenance.is_wrong else result,
        **{name: escape(text) for name, text in _timing(session).items()},
        "machine": escape(f"{macs}, {8 * config.bus_bytes}-bit bus"),
        "device": escape(
            session.device.name
            if session.cycles is None
            else f"{session.device.name}, memory {dram}"
        ),
        "command": f"<code>{escape(provenance.command)}</code>",
        "made": escape(
            f"{provenance.date:%Y-%m-%d %H:%M} UTC by amaranth-vta {provenance.version}"
        ),
    }
    lines = [f"<dt>{name}</dt><dd>{text}</dd>" for name, text in facts.items()]
    return "\n".join(["<dl>", *lines, "</dl>"])


def _timing(session: Session) -> dict[str, str]:
    """Average cycles and time per run, and the number of runs."""
    launches, images = session.launches, session.images_per_run
    runs = max((layer.runs for layer in session.layers), default=0)
    of_images = f" of {images} images" if images > 1 else ""
    found = {"runs": f"{counted(runs, 'run')}{of_images}"}
    if len(launches) > 1 and all(launch.layers == 1 for launch in launches):
        found["runs"] += ", with a launch per layer"
    if not session.cycles or not runs:
        return found
    total, cycles = session.cycles, session.cycles / runs
    bound = sum(launch.bound_cycles for launch in launches)
    used = session.macs / total / session.config.macs_per_cycle
    found["runs"] += f"; {total:,} cycles in all" if runs > 1 else ""
    most = "at most " if session.contract is not None else ""
    estimated = ", estimated" if session.estimated else ""
    found["cycles"] = (
        f"{most}{cycles:,.0f} per run{estimated}: {bound / total:.1%} "
        f"of bound, {used:.1%} of the machine's MACs per cycle"
    )
    found["time"] = f"{_milliseconds(cycles)} per run at {_MHZ} MHz"
    if images > 1:
        found["time"] += f", {_milliseconds(cycles / images)} per image"
    return found


def _milliseconds(cycles: float) -> str:
    return f"{cycles / (1000 * _MHZ):#,.3g} ms"


def _shares(spent: Sequence[Spent]) -> str:
    headings = (
        "layer",
        "load busy",
        "store busy",
        "overlap",
        "read latency",
        "bytes read",
        "bytes written",
    )
    rows = [
        (
            item.name,
            f"{item.share('load_busy'):.0%}",
            f"{item.share('store_busy'):.0%}",
            "" if item.overlap is None else f"{item.overlap:.0%}",
            "" if item.read_latency is None else f"{item.read_latency:.0f}",
            f"{item.counters['bytes_loaded'] // item.runs:,}",
            f"{item.counters['bytes_stored'] // item.runs:,}",
        )
        for item in (*spent, summed(spent))
    ]
    return html_table(headings, rows)


def _layers(session: Session) -> str:
    """The table of layers: cycles are the first numeric column, so that a phone shows them."""
    heads = ("layer", *(HEADS[place] for place in _NUMBERS))
    rows: list[tuple[object, ...]] = []
    for layer in session.layers:
        cells = layer_row(layer)
        if layer.placed_on == "machine":
            numbers = [cells[place] for place in _NUMBERS]
            rows.append(((layer.name, layer.operator), *numbers))
        else:
            host = f"{layer.operator}, host: {layer.reason}"
            rows.append(((layer.name, host), *[""] * len(_NUMBERS)))
    if session.has_layers:
        total = layer_row(whole(session.layers, session.launches, session.config.macs_per_cycle))
        rows.append(("all", *(total[place] for place in _NUMBERS)))
    return html_table(heads, rows)
