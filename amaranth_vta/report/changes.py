"""Two runs side by side: which layers take fewer cycles, and in which parts (`changes`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import fill
from typing import Any

from .chart import LEGEND, segments
from .html import html_page, html_table
from .measured import MeasuredLayer, MeasuredRun
from .text_table import text_table

# Short names of the parts of `segments`, in their order.
_PARTS = (
    "GEMM",
    "GEMM on zeros",
    "loads of UOP, ACC",
    "waits for load",
    "waits for store",
    "ALU",
    "anything else",
)
_NOTE = (
    "Cycles per run. Mostly: the part of the cycles that changed most, of those that compute is "
    "busy with or waits for; ALU is what does not overlap with the others."
)


@dataclass(frozen=True)
class Change:
    """A layer in both runs: its cycles per run, and in ``parts`` the cycles that each part takes
    more in the second, which add up to the difference. ``before`` or ``after`` is None if only the
    other run has the layer."""

    name: str
    before: float | None
    after: float | None
    parts: Mapping[str, float]

    @property
    def ratio(self) -> float | None:
        """Cycles of the second run per cycle of the first."""
        return None if self.before is None or self.after is None else self.after / self.before


def changes(first: MeasuredRun, second: MeasuredRun) -> list[Change]:
    """Layers by name, in the order of ``first``, then those that only ``second`` has."""
    before, after = dict(_numbered(first.layers)), dict(_numbered(second.layers))
    return [
        _change(before.get(key), after.get(key), first.peak, second.peak)
        for key in dict.fromkeys((*before, *after))
    ]


def total(found: Sequence[Change]) -> Change:
    """All layers as one, including those that only one run has."""
    parts = {part: sum(change.parts[part] for change in found) for part in _PARTS}
    before = sum(change.before or 0 for change in found)
    after = sum(change.after or 0 for change in found)
    return Change("all", before, after, parts)


def _numbered(
    layers: Sequence[MeasuredLayer],
) -> Iterator[tuple[tuple[str, int], MeasuredLayer]]:
    """Layers by name, and by number where several have the same name."""
    seen: Counter[str] = Counter()
    for layer in layers:
        yield (layer.name, seen[layer.name]), layer
        seen[layer.name] += 1


def _change(before: MeasuredLayer | None, after: MeasuredLayer | None, *peaks: int) -> Change:
    some = after or before
    assert some is not None
    parts = dict.fromkeys(_PARTS, 0.0)
    for sign, layer, peak in zip((-1, 1), (before, after), peaks, strict=True):
        if layer is None:
            continue
        found = segments(layer.counters, layer.macs, peak)
        for name, (_, _, cycles) in zip(_PARTS, found, strict=True):
            parts[name] += sign * cycles / layer.runs
    was, is_now = (layer.cycles if layer else None for layer in (before, after))
    return Change(some.name, was, is_now, parts)


def changes_table(first: MeasuredRun, second: MeasuredRun, width: int | None = 80) -> str:
    """One row per layer: both counts, their ratio, and what changed most."""
    found = changes(first, second)
    table = text_table(
        ("layer", "mostly", "A", "B", "B / A"),
        [_row(change) for change in found],
        _row(total(found)),
        texts=2,
        width=width,
    )
    return "\n".join(
        (f"A: {_described(first)}", f"B: {_described(second)}", table, fill(_NOTE, width or 80))
    )


def _described(measured: MeasuredRun) -> str:
    return f"{measured.path}{', estimated' if measured.is_estimated else ''}"


def _row(change: Change) -> tuple[str, ...]:
    return (
        change.name,
        _mostly(change),
        *("" if count is None else f"{count:,.0f}" for count in (change.before, change.after)),
        "" if change.ratio is None else f"{change.ratio:.3f}",
    )


def _mostly(change: Change) -> str:
    """The part that changed most in the direction of the total, with its cycles."""
    if change.before is None:
        return "only in B"
    if change.after is None:
        return "only in A"
    difference = change.after - change.before
    if not difference:
        return ""
    direction = 1 if difference > 0 else -1
    name, cycles = max(change.parts.items(), key=lambda part: direction * part[1])
    return f"{name} {_signed(cycles)}"


def _signed(cycles: float) -> str:
    return f"{cycles:+,.0f}".replace("-", "−")


def changes_json(first: MeasuredRun, second: MeasuredRun) -> dict[str, Any]:
    """All changes as numbers for JSON; cycles are per run."""
    found = changes(first, second)
    everything = total(found)
    return {
        "files": [first.path, second.path],
        "estimated": [first.is_estimated, second.is_estimated],
        "cycles": [everything.before, everything.after],
        "ratio": everything.ratio if everything.before else None,
        "parts": dict(everything.parts),
        "layers": [
            {
                "name": change.name,
                "cycles": [change.before, change.after],
                "ratio": change.ratio,
                "parts": dict(change.parts),
            }
            for change in found
        ],
    }


def changes_page(first: MeasuredRun, second: MeasuredRun) -> str:
    """HTML: the table with every part."""
    found = changes(first, second)
    rows = [
        (*_row(change), *(_signed(change.parts[part]) for part in _PARTS))
        for change in (*found, total(found))
    ]
    meanings = [
        f"<li>{escape(part)}: {escape(words)}</li>"
        for part, (words, _) in zip(_PARTS, LEGEND, strict=True)
    ]
    parts = [
        "<h1>Two runs compared</h1>",
        f"<p>A: {escape(_described(first))}<br/>B: {escape(_described(second))}</p>",
        f"<p>{_NOTE} The columns on the right are B's cycles less A's, and add up to the "
        "difference.</p>",
        html_table(("layer", "mostly", "A", "B", "B / A", *_PARTS), rows, words=2),
        "<ul>",
        *meanings,
        "</ul>",
    ]
    return html_page("Two runs compared", parts)
