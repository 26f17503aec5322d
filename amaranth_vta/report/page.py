"""The page of a report: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from html import escape
from typing import TYPE_CHECKING

from amaranth_vta.sw.runtime.counters import Spent, summed

from .chart import STYLE, legend, stacked_bars
from .layer_table import HEADS, layer_row, per_run, whole

if TYPE_CHECKING:
    from amaranth_vta.session import Session

_STYLE = f"""\
body {{ font: 15px/1.45 sans-serif; color: #222; }}
body {{ max-width: 960px; margin: 2em auto; padding: 0 12px; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 1em 0; }}
th, td {{ padding: 2px 10px; text-align: right; border-bottom: 1px solid #ddd; }}
th:first-child, td:first-child, .words {{ text-align: left; }}
td.words {{ min-width: 9em; }}
.wrong {{ background: #fbe3dd; padding: 0.6em 1em; }}
{STYLE}"""


def page(session: Session, title: str, dram: str, links: Mapping[str, str]) -> str:
    """HTML; ``links`` are files in the same folder, each with what it holds."""
    numbers, spent = session.report(), session.spent
    per = per_run(session.images_per_run, session.layers)
    parts = [f"<h1>{escape(title)}</h1>", _summary(session, numbers, dram)]
    if numbers["skipped"] is not None:
        parts.append(
            f'<p class="wrong">{numbers["skipped"]} did nothing but its tokens: the results of '
            "this run are wrong.</p>"
        )
    if spent:
        timed = [layer for layer in session.layers if layer.cycles]
        parts += [
            "<h2>Where the cycles went</h2>",
            f"<p>{per}. A bar is as long as the cycles of its layer, in the colors of what compute "
            "does; ALU that overlaps with GEMM is not shown.</p>",
            f"<p>{legend()}</p>",
            stacked_bars(timed, session.config.macs_per_cycle),
            _shares(spent),
        ]
    parts += [
        "<h2>Layers</h2>",
        f"<p>{per}.</p>",
        _layers(session),
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
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


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
    return _table(headings, rows)


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
        total = layer_row(whole(layers, session.config.macs_per_cycle))
        rows.append((*total[:2], "", *total[2:]))
    return _table((*HEADS[:2], "runs on", *HEADS[2:]), rows, words=3)


def _table(headings: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> str:
    """HTML; the first ``words`` columns are text."""

    def cells(tag: str, row: Sequence[object]) -> str:
        kinds = [' class="words"' if number < words else "" for number in range(len(row))]
        return "".join(
            f"<{tag}{kind}>{escape(str(cell))}</{tag}>"
            for kind, cell in zip(kinds, row, strict=True)
        )

    lines = [f"<tr>{cells('th', headings)}</tr>", *(f"<tr>{cells('td', row)}</tr>" for row in rows)]
    return '<div class="scroll"><table>\n' + "\n".join(lines) + "\n</table></div>"
