"""Waveforms from docstrings: the literal block of a ``Timing`` paragraph, drawn as SVG.

Each line of such a block is a signal and its values, one column per cycle::

    write.enable   1
    read.data          old   new

A value stands in the column of its cycle. Columns are as wide as the smallest distance between two
values of the block.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

_CYCLE, _ROW, _NAME = 56, 28, 8
_BLOCK = re.compile(r"Timing[:,]")


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", draw_timing)
    return {"parallel_read_safe": True}


def draw_timing(app: Any, kind: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    """Replace the literal block of the ``Timing`` paragraph, if there is one, by a drawing."""
    start = next((at for at, line in enumerate(lines) if _BLOCK.match(line.strip())), None)
    if start is None:
        return
    end = start
    while end < len(lines) and lines[end].strip():
        end += 1
    if not lines[end - 1].rstrip().endswith("::"):
        return
    first = end + 1
    last = first
    while last < len(lines) and (lines[last].startswith(" ") and lines[last].strip()):
        last += 1
    drawing = svg(lines[first:last])
    lines[end - 1] = lines[end - 1].rstrip()[:-1]
    lines[first:last] = [".. raw:: html", "", *(f"   {line}" for line in drawing)]


def svg(block: list[str]) -> list[str]:
    """Draw ``block`` as lines of SVG; raises `ValueError` if a line has no signal."""
    rows = [_row(line) for line in block]
    columns = sorted({column for _, values in rows for column, _ in values})
    step = min((b - a for a, b in pairwise(columns)), default=1)
    origin = columns[0] if columns else 0
    names = max(len(name) for name, _ in rows) * _NAME + 16
    cycles = max((round((column - origin) / step) for column in columns), default=0) + 1
    width, height = names + cycles * _CYCLE + 8, len(rows) * _ROW + 8
    lines = [
        f'<svg class="timing" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        'font-family="monospace" font-size="13" fill="currentColor" stroke="none">'
    ]
    for cycle in range(cycles + 1):
        x = names + cycle * _CYCLE
        lines.append(
            f'<path d="M{x} 4V{height - 4}" stroke="currentColor" stroke-opacity=".2" '
            'stroke-dasharray="2 3"/>'
        )
    for at, (name, values) in enumerate(rows):
        y = 4 + at * _ROW
        lines.append(f'<text x="4" y="{y + 18}">{html.escape(name)}</text>')
        shown = {round((column - origin) / step): value for column, value in values}
        for cycle in range(cycles):
            lines += _cell(names + cycle * _CYCLE, y, shown.get(cycle))
    return [*lines, "</svg>"]


def _row(line: str) -> tuple[str, list[tuple[int, str]]]:
    words = list(re.finditer(r"\S+", line))
    if not words:
        raise ValueError("a line of a timing diagram names no signal")
    name, *values = words
    return name[0], [(match.start(), match[0]) for match in values]


def _cell(x: int, y: int, value: str | None) -> Iterator[str]:
    low, high, middle = y + 23, y + 5, x + _CYCLE / 2
    if value is None or value == "0":
        yield f'<path d="M{x} {low}H{x + _CYCLE}" stroke="currentColor" stroke-opacity=".6"/>'
        if value is None:
            return
    else:
        yield (
            f'<path d="M{x} {low}V{high}H{x + _CYCLE}V{low}Z" fill="currentColor" '
            'fill-opacity=".08" stroke="currentColor" stroke-opacity=".6"/>'
        )
    yield f'<text x="{middle}" y="{y + 18}" text-anchor="middle">{html.escape(value)}</text>'
