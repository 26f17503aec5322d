"""A text table of a network's layers with cycles per run: `layer_table`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from textwrap import fill

from .host_summary import host_groups, share_on_machine
from .layer_report import LaunchReport, LayerReport
from .text_table import text_table

HEADS = ("layer", "operator", "MACs", "cycles", "of bound", "utilization")
OVERLAP = (
    "Layers of one launch overlap, since weights are prefetched: only the launch as a whole has a "
    "bound. `--launch layer` launches each layer by itself."
)
# Maximum number of consecutive host operators with a row each; longer sequences are folded into one
# row.
_MAX_HOST_ROWS = 2
# Maximum number of reasons shown, to fit a screen.
_MAX_REASONS = 8


def layer_row(layer: LayerReport) -> tuple[str, ...]:
    """The cells of `HEADS` for one run of a layer."""
    if layer.placed_on == "host":
        return (layer.name, layer.operator, "host", "", "", "")
    return (
        layer.name,
        layer.operator,
        f"{layer.macs_per_run:,}",
        f"{layer.cycles / layer.runs:,.0f}" if layer.cycles else "",
        f"{layer.bound_cycles / layer.cycles:.1%}"
        if layer.cycles and layer.bound_cycles is not None
        else "",
        "" if layer.utilization is None else f"{layer.utilization:.1%}",
    )


def whole(
    layers: Sequence[LayerReport], launches: Sequence[LaunchReport], peak: int
) -> LayerReport:
    """All layers on the machine, at least one, combined in one report; ``peak`` is the machine's
    MACs per cycle.
    """
    machine = [layer for layer in layers if layer.placed_on == "machine"]
    cycles = sum(launch.cycles or 0 for launch in launches) or None
    macs = sum(layer.macs for layer in machine)
    return replace(
        machine[0],
        name="all",
        operator="",
        macs_per_run=sum(layer.macs_per_run for layer in machine),
        macs=macs,
        cycles=cycles,
        bound_cycles=sum(launch.bound_cycles for launch in launches),
        utilization=macs / cycles / peak if cycles else None,
    )


def layer_table(
    layers: Sequence[LayerReport],
    launches: Sequence[LaunchReport],
    peak: int,
    images: int,
    *,
    width: int | None = 80,
    explain: bool = False,
) -> str:
    """One line per layer, and the host's operators counted by reason.

    ``peak`` is the machine's MACs per cycle, ``images`` the number of images per run. A long
    sequence of host operators is folded into one line, unless ``explain`` is set.
    """
    rows = [row for group in _parts(layers, explain) for row in group]
    machine = [layer for layer in layers if layer.placed_on == "machine"]
    total = layer_row(whole(layers, launches, peak)) if machine else None
    # Without a clock, only the MACs are shown.
    timed = any(launch.cycles for launch in launches)
    columns = len(HEADS) if timed else 3
    table = text_table(
        HEADS[:columns],
        [row[:columns] for row in rows],
        total[:columns] if total else None,
        texts=2,
        width=width,
    )
    notes = [fill(OVERLAP, width or 80)] if timed and overlap(layers) else []
    return "\n".join([per_run(images, layers), table, *notes, *host_lines(layers, width)])


def overlap(layers: Iterable[LayerReport]) -> bool:
    """Whether any layers share a launch, so that the note `OVERLAP` applies."""
    return any(layer.placed_on == "machine" and layer.bound_cycles is None for layer in layers)


def per_run(images: int, layers: Iterable[LayerReport] = ()) -> str:
    """The heading of a table: the unit of its numbers."""
    runs = max((layer.runs for layer in layers), default=0)
    of_runs = f", on average over {runs:,} runs" if runs > 1 else ""
    return f"Per run of {images} images{of_runs}" if images > 1 else f"Per image{of_runs}"


def _parts(layers: Sequence[LayerReport], explain: bool) -> Iterator[list[tuple[str, ...]]]:
    """The rows of each group of consecutive operators on the machine or on the host."""
    for side, group in groupby(layers, lambda layer: layer.placed_on):
        part = list(group)
        if side == "host" and len(part) > _MAX_HOST_ROWS and not explain:
            kinds = Counter(layer.operator for layer in part)
            operators = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
            yield [(f"{len(part)} operators", operators, "host", "", "", "")]
        else:
            yield [layer_row(layer) for layer in part]


def host_lines(layers: Sequence[LayerReport], width: int | None) -> Iterator[str]:
    """The host's operators, counted by reason."""
    groups = host_groups(layers)
    if not groups:
        return
    share = share_on_machine(layers)
    yield "On the host:" if share is None else f"On the host, with {1 - share:.1%} of the MACs:"
    shown = groups[:_MAX_REASONS]
    for group in shown:
        macs = f", {group.macs:,} MACs" if group.macs else ""
        advice = f"; {group.advice}" if group.advice else ""
        line = f"{group.count:>5,}  {group.reason}{macs}{advice}"
        yield line if width is None else fill(line, width, subsequent_indent=" " * 7)
    if rest := sum(group.count for group in groups[_MAX_REASONS:]):
        yield f"{rest:>5,}  others; --explain prints the reasons"
