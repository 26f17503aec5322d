"""Compares two runs: which layers take fewer cycles, and in which parts (`compared`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil
from textwrap import fill
from typing import Any

from .chart import LEGEND, segments
from .html import html_page, html_table
from .measured import MeasuredLayer, MeasuredRun
from .text_table import counted, text_table

# Short names of the parts of `segments`, in the same order.
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
    "Mostly: the part of the cycles that changed most. In each part, compute is busy or waits. "
    "ALU counts only cycles that do not overlap with the other parts."
)


@dataclass(frozen=True)
class Change:
    """A layer in both runs: its cycles per run, and in ``parts`` the change of each part from the
    first run to the second; these add up to the difference. ``before`` or ``after`` is None if that
    run does not have the layer. ``problem`` says why the two are not compared; empty if they do the
    same work.
    """

    name: str
    before: float | None
    after: float | None
    parts: Mapping[str, float]
    problem: str = ""

    @property
    def ratio(self) -> float | None:
        """Cycles of the second run divided by cycles of the first; None if not comparable."""
        if self.problem or self.after is None or not self.before:
            return None
        return self.after / self.before


@dataclass(frozen=True)
class RunComparison:
    """Two runs, converted to one image each if they differ in the number of images; ``changes`` has
    their layers, and ``total`` sums the cycles of equal work, None without any.

    With ``is_whole``, all work on the machines is equal: the networks have the same MACs there, and
    the hosts run the same operators. Otherwise only layers that do the same work in both runs
    count.
    """

    first: MeasuredRun
    second: MeasuredRun
    per: str
    changes: tuple[Change, ...]
    is_whole: bool

    @property
    def equal(self) -> list[Change]:
        """The changes included in the total."""
        if self.is_whole:
            return list(self.changes)
        return [change for change in self.changes if not change.problem]

    @property
    def total(self) -> Change | None:
        equal = self.equal
        if not equal:
            return None
        parts = {part: sum(change.parts[part] for change in equal) for part in _PARTS}
        before = sum(change.before or 0 for change in equal)
        after = sum(change.after or 0 for change in equal)
        return Change("all" if self.is_whole else "equal work", before, after, parts)

    @property
    def sides(self) -> tuple[tuple[str, MeasuredRun, MeasuredRun], ...]:
        """For each run its letter, the run, and the other run."""
        return ("A", self.first, self.second), ("B", self.second, self.first)


def compared(first: MeasuredRun, second: MeasuredRun) -> RunComparison:
    """Match layers by name and operator: all layers of ``first`` in order, then those only in
    ``second``.
    """
    per = "run"
    if first.images != second.images:
        first, second, per = first.per_image(), second.per_image(), "image"
    before, after = dict(_numbered(first.layers)), dict(_numbered(second.layers))
    keys = dict.fromkeys((*before, *after))
    names = Counter(name for name, _, number in keys if not number)
    found = []
    for key in keys:
        name, operator, _ = key
        # Fusion changes the operator of a layer.
        label = f"{name} ({operator})" if names[name] > 1 else name
        problem = _problem(before.get(key), after.get(key), first, second)
        found.append(
            _change(label, problem, before.get(key), after.get(key), first.peak, second.peak)
        )
    return RunComparison(first, second, per, tuple(found), _same_work(first, second))


def _same_work(first: MeasuredRun, second: MeasuredRun) -> bool:
    """Whether the machines do the same work in total, however it is split into layers."""
    if first.host is None or second.host is None:
        return False
    return (first.machine_macs, first.host.macs, first.host.operators) == (
        second.machine_macs,
        second.host.macs,
        second.host.operators,
    )


def _numbered(
    layers: Sequence[MeasuredLayer],
) -> Iterator[tuple[tuple[str, str, int], MeasuredLayer]]:
    """Layers with a key of name, operator, and a serial number to distinguish duplicates."""
    seen: Counter[tuple[str, str]] = Counter()
    for layer in layers:
        name = layer.name, layer.operator
        yield (*name, seen[name]), layer
        seen[name] += 1


def _problem(
    before: MeasuredLayer | None,
    after: MeasuredLayer | None,
    first: MeasuredRun,
    second: MeasuredRun,
) -> str:
    """Why two layers are not compared; empty if they are."""
    for layer, missing, here, there, other in (
        (before, after, "A", "B", second),
        (after, before, "B", "A", first),
    ):
        if layer is not None and missing is None:
            on_host = other.host is not None and layer.name in other.host.names
            return f"on {there}'s host" if on_host else f"only in {here}"
    assert before is not None
    assert after is not None
    if before.macs_per_run != after.macs_per_run:
        return f"{before.macs_per_run:,.0f} MACs, {after.macs_per_run:,.0f} in B"
    return ""


def _change(
    label: str,
    problem: str,
    before: MeasuredLayer | None,
    after: MeasuredLayer | None,
    *peaks: int,
) -> Change:
    parts = dict.fromkeys(_PARTS, 0.0)
    for sign, layer, peak in zip((-1, 1), (before, after), peaks, strict=True):
        if layer is None:
            continue
        found = segments(layer.counters, layer.macs, peak)
        for name, (_, _, cycles) in zip(_PARTS, found, strict=True):
            parts[name] += sign * cycles / layer.runs
    was, is_now = (layer.cycles if layer else None for layer in (before, after))
    return Change(label, was, is_now, parts, problem)


def changes_table(first: MeasuredRun, second: MeasuredRun, width: int = 80) -> str:
    """A text table with one row per layer: both cycle counts, their ratio and the largest change;
    with remarks on the hosts' work and a note on the total.
    """
    found = compared(first, second)
    table = text_table(
        ("layer", "mostly", "A", "B", "B / A"),
        [_row(change) for change in found.changes],
        None if found.total is None else _row(found.total),
        texts=2,
        width=width,
    )
    lines = []
    for name, remark in _headline(found):
        lines += [name, fill(remark, width)] if remark else [name]
    return "\n".join((*lines, table, *(fill(note, width) for note in _notes(found))))


def _headline(found: RunComparison) -> Iterator[tuple[str, str]]:
    """The description of each run, and a remark on its host's work."""
    for letter, run, other in found.sides:
        remark = ""
        if run.host_share:
            assert run.host is not None
            cost = ceil(run.host.macs / run.peak)
            remark = (
                f"The host of {letter} runs {run.host_share:.1%} of the MACs, for which the "
                f"machine would take at least {cost:,} cycles."
            )
        elif run.host is not None and other.host is not None:
            more = run.host.operators - other.host.operators
            if more:
                kinds = ", ".join(f"{kind} {count}" for kind, count in more.most_common())
                remark = f"The host of {letter} also runs {kinds}."
        yield f"{letter}: {_described(run)}", remark


def _notes(found: RunComparison) -> Iterator[str]:
    """Notes on the unit of the numbers, and on the layers included in the total."""
    note = f"Cycles per {found.per}. "
    if found.total is None:
        yield f"{note}No layer does the same work in both runs, so there is no total. {_NOTE}"
        return
    others = [change for change in found.changes if change not in found.equal]
    if others:
        before = sum(change.before or 0 for change in others)
        after = sum(change.after or 0 for change in others)
        left = [f"{cycles:,.0f} cycles of {letter}" for letter, cycles in
                (("A", before), ("B", after)) if cycles]  # fmt: skip
        note += (
            f"The total counts {counted(len(found.equal), 'layer')} with the same work in both "
            f"runs; it leaves out {' and '.join(left)}. "
        )
    yield f"{note}{_NOTE}"


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
    """The part that changed most in the direction of the total, or the reason why the layer is not
    compared.
    """
    if change.problem or change.before is None or change.after is None:
        return change.problem
    difference = change.after - change.before
    if not difference:
        return ""
    direction = 1 if difference > 0 else -1
    name, cycles = max(change.parts.items(), key=lambda part: direction * part[1])
    return f"{name} {_signed(cycles)}"


def _signed(cycles: float) -> str:
    return f"{cycles:+,.0f}".replace("-", "−")


def changes_json(first: MeasuredRun, second: MeasuredRun) -> dict[str, Any]:
    """All changes as numbers for JSON; cycles are per run, or per image (``per``). ``cycles``,
    ``ratio`` and ``parts`` count equal work: everything on the machine (``is_whole``), or
    ``layers_compared`` layers.
    """
    found = compared(first, second)
    everything = found.total
    sides = found.first, found.second
    return {
        "files": [first.path, second.path],
        "estimated": [first.is_estimated, second.is_estimated],
        "per": found.per,
        "host_share": [run.host_share for run in sides],
        "host_macs": [None if run.host is None else run.host.macs for run in sides],
        "host_least_cycles": [
            None if run.host is None else ceil(run.host.macs / run.peak) for run in sides
        ],
        "is_whole": found.is_whole,
        "layers_compared": len(found.equal),
        "cycles": [everything.before, everything.after] if everything else [None, None],
        "ratio": everything.ratio if everything else None,
        "parts": dict(everything.parts) if everything else None,
        "layers": [
            {
                "name": change.name,
                "cycles": [change.before, change.after],
                "ratio": change.ratio,
                "problem": change.problem,
                "parts": dict(change.parts),
            }
            for change in found.changes
        ],
    }


def changes_page(first: MeasuredRun, second: MeasuredRun) -> str:
    """HTML page: the table with a column for every part."""
    found = compared(first, second)
    total = () if found.total is None else (found.total,)
    rows = []
    for change in (*found.changes, *total):
        name, mostly, *counts = _row(change)
        differences = (_signed(change.parts[part]) for part in _PARTS)
        rows.append(((name, mostly), *counts, *differences))
    meanings = [
        f"<li>{escape(part)}: {escape(words)}</li>"
        for part, (words, _) in zip(_PARTS, LEGEND, strict=True)
    ]
    parts = [
        "<h1>Two runs compared</h1>",
        *(f"<p>{escape(name)}<br/>{escape(remark)}</p>" for name, remark in _headline(found)),
        *(f"<p>{escape(note)}</p>" for note in _notes(found)),
        "<p>Below the name of a layer is what changed most. The columns on the right are B's "
        "cycles less A's, and add up to the difference.</p>",
        html_table(("layer", "A", "B", "B / A", *_PARTS), rows),
        "<ul>",
        *meanings,
        "</ul>",
    ]
    return html_page("Two runs compared", parts)
