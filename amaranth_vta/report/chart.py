"""Where the cycles went, as a picture: `stacked_bars`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from amaranth_vta.sw.runtime.counters import Spent

# What compute was at: the counter, its words, its color. What is left of a run is `_REST`.
PARTS = (
    ("gemm_busy", "GEMM", "#2a6f97"),
    ("compute_load_busy", "loads of UOP and ACC", "#8d6a9f"),
    ("compute_waits_for_load", "waits for load", "#e07a5f"),
    ("compute_waits_for_store", "waits for store", "#f2cc8f"),
    ("alu_busy", "ALU", "#81b29a"),
)
REST = ("anything else: decoding, first and last latencies", "#d9d9d9")
_WIDTH, _NAMES, _ROW, _BAR, _NUMBERS = 900, 170, 28, 20, 90


def segments(spent: Spent) -> list[tuple[str, str, int]]:
    """Words, color and cycles of the parts of a run, which add up to its cycles.

    Of the ALU this is what does not fit beside GEMM: what comes to more than all cycles together
    was beside it.
    """
    left = spent.cycles
    found = []
    for counter, words, color in PARTS:
        part = min(spent.counters[counter], left)
        left -= part
        found.append((words, color, part))
    return [*found, (*REST, left)]


def stacked_bars(spent: Sequence[Spent]) -> str:
    """SVG: a bar an item, as long as its cycles a run, in the parts of `segments`."""
    longest = max(item.cycles / item.runs for item in spent)
    scale = (_WIDTH - _NAMES - _NUMBERS) / longest
    height = _ROW * len(spent)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" font-family="sans-serif" font-size="13" role="img" '
        'aria-label="cycles of each layer by what compute was at">'
    ]
    for number, item in enumerate(spent):
        middle = number * _ROW + _ROW // 2
        lines.append(
            f'<text x="{_NAMES - 8}" y="{middle + 4}" text-anchor="end">{escape(item.name)}</text>'
        )
        at = float(_NAMES)
        for words, color, cycles in segments(item):
            width = cycles / item.runs * scale
            if cycles:
                lines.append(
                    f'<rect x="{at:.1f}" y="{middle - _BAR // 2}" width="{width:.1f}" '
                    f'height="{_BAR}" fill="{color}"><title>{escape(item.name)}: {words}, '
                    f"{cycles / item.runs:,.0f} cycles, {cycles / item.cycles:.1%}</title></rect>"
                )
            at += width
        cycles_text = f"{item.cycles / item.runs:,.0f}"
        lines.append(f'<text x="{at + 6:.1f}" y="{middle + 4}">{cycles_text}</text>')
    return "\n".join([*lines, "</svg>"])


def legend() -> str:
    """HTML: what the colors mean."""
    entries = [*((words, color) for _, words, color in PARTS), REST]
    return "".join(
        f'<span class="key"><i style="background:{color}"></i>{words}</span>'
        for words, color in entries
    )
