"""A chart of the breakdown of cycles: `stacked_bars`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from .layer_report import LayerReport

# Activities of compute, each with a color. GEMM is busy with the network's own MACs and with zeros,
# which pad tiles and surround the diagonal of a depthwise layer; some layers also move values
# through it.
_USEFUL = ("GEMM, MACs of the network", "#2a78ad")
_PADDED = ("GEMM, zeros in tiles and moves", "#a9cbe0")
_OTHERS = (
    ("compute_load_busy", ("loads of UOP and ACC", "#8d6a9f")),
    ("compute_waits_for_load", ("waits for load", "#e07a5f")),
    ("compute_waits_for_store", ("waits for store", "#f2cc8f")),
    ("alu_busy", ("ALU", "#81b29a")),
)
_REST = ("anything else: decoding, first and last latencies", "#d9d9d9")
LEGEND = (_USEFUL, _PADDED, *(part for _, part in _OTHERS), _REST)

# The counters that `segments` reads besides the cycles.
COUNTERS = ("gemm_busy", *(counter for counter, _ in _OTHERS))

STYLE = """\
.bars { display: grid; grid-template-columns: minmax(6em, max-content) 1fr; gap: 4px 10px; }
.bars .name { overflow-wrap: anywhere; text-align: right; max-width: 16em; }
.bars .line { display: flex; align-items: center; gap: 6px; min-width: 0; }
.bars .bar { display: flex; height: 20px; min-width: 1px; }
.bars .number { white-space: nowrap; }
.key { margin-right: 1.2em; display: inline-block; }
.key i { display: inline-block; width: 0.9em; height: 0.9em; margin-right: 0.4em; }
@media (max-width: 640px) {
  .bars { grid-template-columns: 1fr; gap: 0; }
  .bars .name { text-align: left; max-width: none; margin-top: 6px; }
}
"""
# Width of the longest bar, as a fraction of the line; the rest is for the number after it.
_LONGEST = 0.8


def segments(counters: Mapping[str, int], macs: int, peak: int) -> list[tuple[str, str, int]]:
    """Name, color and cycles of each part of a layer's runs; the parts add up to its cycles.

    ``macs`` counts the network's MACs, ``peak`` is the machine's MACs per cycle. The ALU's part has
    only cycles that do not overlap with other parts.
    """
    left = counters["cycles"]
    busy = counters["gemm_busy"]
    useful = min(busy, round(macs / peak))
    counts = [(_USEFUL, useful), (_PADDED, busy - useful)]
    counts += [(part, counters[counter]) for counter, part in _OTHERS]
    found = []
    for (words, color), count in counts:
        part = min(count, left)
        left -= part
        found.append((words, color, part))
    return [*found, (*_REST, left)]


def stacked_bars(layers: Sequence[LayerReport], peak: int) -> str:
    """HTML: one bar per layer, proportional to its cycles per run, split into the parts of
    `segments`.
    """
    longest = max(layer.counters["cycles"] / layer.runs for layer in layers)
    lines = ['<div class="bars">']
    for layer in layers:
        cycles = layer.counters["cycles"]
        name = escape(layer.name)
        share = cycles / layer.runs / longest * _LONGEST
        lines.append(f'<div class="name">{name}</div>')
        lines.append(f'<div class="line"><div class="bar" style="width:{share:.2%}">')
        for words, color, part in segments(layer.counters, layer.macs, peak):
            if part:
                title = f"{name}: {words}, {part / layer.runs:,.0f} cycles, {part / cycles:.1%}"
                style = f"width:{part / cycles:.2%};background:{color}"
                lines.append(f'<div style="{style}" title="{title}"></div>')
        lines.append(f'</div><span class="number">{cycles / layer.runs:,.0f}</span></div>')
    return "\n".join([*lines, "</div>"])


def legend() -> str:
    """HTML: the legend of the colors."""
    return "".join(
        f'<span class="key"><i style="background:{color}"></i>{words}</span>'
        for words, color in LEGEND
    )
