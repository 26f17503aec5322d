"""The page of a report: a self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from html import escape
from typing import TYPE_CHECKING

from amaranth_vta.sw.runtime.counters import Spent, summed

from .chart import legend, stacked_bars
from .cycles_table import UNKNOWN
from .html import html_page, html_table
from .layer_table import HEADS, layer_row, per_run, whole

if TYPE_CHECKING:
    from amaranth_vta.session import Session
    from amaranth_vta.session.layers import LayerReport


def page(session: Session, title: str, dram: str, links: Mapping[str, str]) -> str:
    """The page as HTML; ``links`` has files in the same folder with a description of each."""
    numbers, spent = session.report(), session.spent
    per = per_run(session.images_per_run, session.layers)
    parts = [f"<h1>{escape(title)}</h1>", _summary(session, numbers, dram)]
    if numbers["skipped"] is not None:
        parts.append(
            f'<p class="wrong">{numbers["skipped"]} only passed its tokens on: the results of '
            "this run are wrong.</p>"
        )
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
        f"<p>{per}.</p>",
        _layers(session),
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


def _bars(session: Session, timed: Sequence[LayerReport], per: str) -> list[str]:
    """The chart of layers that have a launch each."""
    return [
        f"<p>{per}. A bar is as long as the cycles of its layer, in the colors of what compute "
        "does; ALU that overlaps with GEMM is not shown.</p>",
        f"<p>{legend()}</p>",
        stacked_bars(timed, session.config.macs_per_cycle),
    ]


def _summary(session: Session, numbers: Mapping[str, object], dram: str) -> str:
    config = session.config
    macs = f"{config.batch}×{config.block_in}×{config.block_out} multiply-accumulates per cycle"
    said = [f"{macs}, {8 * config.bus_bytes}-bit bus", f"device {session.device.name}"]
    if session.cycles is not None:
        said += [
            f"memory {dram}",
            f"{session.cycles:,} cycles",
            f"{numbers['utilization']:.1%} of the machine's MACs per cycle",
        ]
    return f"<p>{escape('; '.join(said))}.</p>"


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
    layers = session.layers
    rows = [
        (
            *(layer.name, layer.operator),
            f"host: {layer.reason}" if layer.reason else layer.placed_on,
            *(layer_row(layer)[2:] if layer.placed_on == "machine" else [""] * len(HEADS[2:])),
        )
        for layer in layers
    ]
    if any(layer.placed_on == "machine" for layer in layers):
        total = layer_row(whole(layers, session.launches, session.config.macs_per_cycle))
        rows.append((*total[:2], "", *total[2:]))
    return html_table((*HEADS[:2], "runs on", *HEADS[2:]), rows, words=3)
