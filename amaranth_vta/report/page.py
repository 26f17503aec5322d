"""The page of a report: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from html import escape
from typing import TYPE_CHECKING

from amaranth_vta.sw.runtime.counters import Spent, summed

from .chart import legend, stacked_bars

if TYPE_CHECKING:
    from amaranth_vta.session import LayerReport, Session

_STYLE = """\
body { font: 15px/1.45 sans-serif; max-width: 960px; margin: 2em auto; color: #222; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { padding: 2px 10px; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child, .words { text-align: left; }
.key { margin-right: 1.2em; white-space: nowrap; }
.key i { display: inline-block; width: 0.9em; height: 0.9em; margin-right: 0.4em; }
.wrong { background: #fbe3dd; padding: 0.6em 1em; }
"""


def page(session: Session, title: str, dram: str, links: Mapping[str, str]) -> str:
    """HTML; ``links`` are files beside it, each with its words."""
    numbers, spent = session.report(), session.spent
    parts = [f"<h1>{escape(title)}</h1>", _summary(session, numbers, dram)]
    if numbers["skipped"] is not None:
        parts.append(
            f'<p class="wrong">{numbers["skipped"]} did nothing but its tokens: the results of '
            "this run are wrong.</p>"
        )
    if spent:
        parts += [
            "<h2>Where the cycles went</h2>",
            "<p>A bar a layer, as long as its cycles, by what compute was at. ALU that ran beside "
            "GEMM is not shown.</p>",
            f"<p>{legend()}</p>",
            stacked_bars(spent),
            _shares(spent),
        ]
    parts += [
        "<h2>Layers</h2>",
        _layers(session.layers),
        "<h2>Configuration</h2>",
        _table(
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
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _summary(session: Session, numbers: Mapping[str, object], dram: str) -> str:
    config = session.config
    macs = f"{config.batch}×{config.block_in}×{config.block_out} multiply-accumulates a cycle"
    said = [f"{macs}, {8 * config.bus_bytes}-bit bus", f"device {session.device.name}"]
    if session.cycles is not None:
        said += [
            f"memory {dram}",
            f"{session.cycles:,} cycles",
            f"{numbers['utilization']:.1%} of all MACs a cycle",
        ]
    return f"<p>{escape('; '.join(said))}.</p>"


def _shares(spent: Sequence[Spent]) -> str:
    headings = (
        "layer",
        "load busy",
        "store busy",
        "GEMM beside load",
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
    return _table(headings, rows)


def _layers(layers: Iterable[LayerReport]) -> str:
    headings = (
        "layer",
        "operator",
        "runs on",
        "MACs",
        "cycles",
        "bound",
        "of bound",
        "utilization",
    )
    rows = [
        (
            layer.name,
            layer.operator,
            f"host: {layer.reason}" if layer.reason else layer.placed_on,
            f"{layer.macs_per_run:,}" if layer.placed_on == "machine" else "",
            f"{layer.cycles / layer.runs:,.0f}" if layer.cycles else "",
            f"{layer.bound_cycles // layer.runs:,}" if layer.bound_cycles else "",
            f"{layer.bound_cycles / layer.cycles:.0%}" if layer.cycles else "",
            "" if layer.utilization is None else f"{layer.utilization:.1%}",
        )
        for layer in layers
    ]
    return _table(headings, rows, words=3)


def _table(headings: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> str:
    """HTML; the first ``words`` columns are text."""

    def cells(tag: str, row: Sequence[object]) -> str:
        kinds = [' class="words"' if number < words else "" for number in range(len(row))]
        return "".join(
            f"<{tag}{kind}>{escape(str(cell))}</{tag}>"
            for kind, cell in zip(kinds, row, strict=True)
        )

    lines = [f"<tr>{cells('th', headings)}</tr>", *(f"<tr>{cells('td', row)}</tr>" for row in rows)]
    return "<table>\n" + "\n".join(lines) + "\n</table>"
