"""The page of an exploration, while it runs and at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from amaranth_vta.fpga.chips import RESOURCES
from amaranth_vta.report.html import html_page, html_table

from .evaluate import Cost
from .exploration import Exploration
from .folder import MACHINES
from .front import sensitivities
from .plots import BEST, STYLE, Mark, number, roofline, scatter
from .results import OK, Row, clock_mhz, objectives
from .search import Values
from .spec import METRICS, Spec

_REFRESH_SECONDS = 5


def machine_name(rank: int) -> str:
    """The file of the machine of so many before it on the front."""
    return f"front-{rank + 1:02d}.json"


def live_page(exploration: Exploration) -> str:
    """HTML that loads itself again: how far it is, and the front so far."""
    spec = exploration.spec
    done = len(exploration.rows)
    parts = [
        f'<meta http-equiv="refresh" content="{_REFRESH_SECONDS}"/>',
        "<h1>Exploration, running</h1>",
        f"<p>{done:,} points so far, of at most {_most(spec):,}.</p>",
        *_overview(exploration),
    ]
    return html_page("Exploration", parts, STYLE)


def final_page(exploration: Exploration, costs: Mapping[str, tuple[Row, Cost]], folder: str) -> str:
    """HTML: all of it. ``costs`` has, by network, its best point with what its layers take;
    ``folder`` is where the files are, for the commands."""
    spec = exploration.spec
    parts = [
        "<h1>Which machine for which network</h1>",
        f"<p>{_described(exploration)}</p>",
        *(f'<p class="wrong">{escape(note)}</p>' for note in exploration.notes),
        *_overview(exploration),
        *_commands(exploration, folder),
        *_sensitivity(exploration),
        *(part for label, found in costs.items() for part in _roofline(spec, label, *found)),
        *_skipped(exploration),
        "<h2>Files</h2>",
        '<ul><li><a href="results.csv">results.csv</a>: every point</li>'
        f'<li><a href="{MACHINES}/">{MACHINES}/</a>: configurations of the front</li></ul>',
    ]
    return html_page("Which machine for which network", parts, STYLE)


def _most(spec: Spec) -> int:
    return min(spec.search.points, spec.combinations * len(spec.networks) * len(spec.memories))


def _described(exploration: Exploration) -> str:
    spec, chip = exploration.spec, exploration.spec.limits.chip
    good = sum(row.status == OK for row in exploration.rows)
    return (
        f"{len(exploration.rows):,} points of {spec.combinations:,} combinations, "
        f"{good:,} within the limits, chosen by {spec.search.method}; networks: "
        f"{escape(', '.join(exploration.networks))}; memory: {', '.join(spec.memories)}. "
        f"Chip: {chip.name}, {clock_mhz(spec):g} MHz. Cycles are estimated, area is that of a "
        "fitted model; what was simulated says so."
    )


def _overview(exploration: Exploration) -> Iterator[str]:
    """The front as a plot and as a table."""
    spec, found = exploration.spec, exploration.objectives
    yield "<h2>Pareto front</h2>"
    if not found:
        yield "<p>No machine is within the limits.</p>"
        return
    if len(spec.objectives) > 1:
        ranks = {rows[0].machine.values: rank for rank, rows in enumerate(exploration.best)}
        others = [_mark(spec, v, numbers) for v, numbers in found.items() if v not in ranks]
        front = [_mark(spec, values, found[values], rank) for values, rank in ranks.items()]
        labels = tuple(METRICS[name] for name in spec.objectives[:2])
        yield scatter(others, (labels[0], labels[1]), front)
    yield "<p>No other machine is as good in all objectives and better in one.</p>"
    yield html_table(*front_table(exploration))


def _mark(spec: Spec, values: Values, numbers: Sequence[float], rank: int | None = None) -> Mark:
    said = ", ".join(f"{key} {v}" for key, v in zip(spec.parameters, values, strict=True))
    if rank is None:
        return Mark(max(numbers[0], 1e-9), max(numbers[1], 1e-9), said)
    title = f"{machine_name(rank)}: {said}"
    return Mark(max(numbers[0], 1e-9), max(numbers[1], 1e-9), title, BEST, 5)


def front_table(exploration: Exploration) -> tuple[list[str], list[list[str]]]:
    """Heads and lines of a table of the front."""
    spec, best = exploration.spec, exploration.best
    varied = [key for key, values in spec.parameters.items() if len(values) > 1]
    is_one = len(exploration.networks) * len(spec.memories) == 1
    is_simulated = is_one and any(row.rtl for rows in best for row in rows)
    others = [name for name in RESOURCES if name not in spec.objectives]
    heads = [
        *("machine", *spec.objectives, *varied, *others, f"of {spec.limits.chip.name}"),
        *(["utilization"] if is_one else []),
        *(["on RTL"] if is_simulated else []),
    ]
    lines = []
    for rank, rows in enumerate(best):
        machine, numbers = rows[0].machine, objectives(spec, rows)
        run, area, config = rows[0].run, machine.area, machine.config
        assert numbers is not None
        assert run is not None
        assert area is not None
        assert config is not None
        values = dict(zip(spec.parameters, machine.values, strict=True))
        line = [
            machine_name(rank),
            *(_number(value) for value in numbers),
            *(str(values[key]) for key in varied),
            *(f"{getattr(area, name):,g}" for name in others),
            f"{spec.limits.chip.share(area):.0%}",
        ]
        if is_one:
            line.append(f"{run.macs / run.cycles / config.macs_per_cycle:.1%}")
        if is_simulated:
            line.append(_simulated(rows[0]))
        lines.append(line)
    return heads, lines


def _simulated(row: Row) -> str:
    if row.rtl is None:
        return ""
    wrong = f", {row.rtl.mismatches:,} wrong" if row.rtl.mismatches else ""
    return f"{row.rtl.cycles:,}{wrong}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else number(value)


def _commands(exploration: Exploration, folder: str) -> Iterator[str]:
    if not exploration.best:
        return
    yield "<h2>Commands</h2>"
    yield "<p>Each machine of the front is a file; these run a network on the first of them.</p>"
    lines = []
    for row in exploration.best[0]:
        common = f"--config {folder}/{MACHINES}/{machine_name(0)} --dram {row.memory}"
        source = source_of(exploration.spec, row.network)
        command = "run" if source.endswith(".onnx") else "bench"
        for device in ("estimate --timing-only", "rtl"):
            lines.append(f"vta {command} {source} {common} --device {device}")
    lines.append(f"vta verilog --config {folder}/{MACHINES}/{machine_name(0)} -o vta.v")
    yield f'<div class="scroll"><pre>{escape(chr(10).join(dict.fromkeys(lines)))}</pre></div>'


def source_of(spec: Spec, label: str) -> str:
    """The file of the network called ``label``, or the name of its generator."""
    return next((name for name in spec.networks if name.endswith(f"{label}.onnx")), label)


def _sensitivity(exploration: Exploration) -> Iterator[str]:
    spec = exploration.spec
    found = sensitivities(spec.parameters, spec.objectives, exploration.objectives)
    if not found:
        return
    yield "<h2>What each parameter does</h2>"
    yield (
        "<p>Share: how much of the variance of the objective (of its logarithm) the parameter "
        "alone explains. For each of its values: how many machines have it, the best of them, and "
        "the median.</p>"
    )
    rows = [
        (
            *((item.parameter, item.objective, f"{item.share:.0%}") if not place else ("", "", "")),
            effect.value,
            effect.machines,
            number(effect.best),
            number(effect.median),
        )
        for item in sorted(found, key=lambda item: (item.objective, -item.share))
        for place, effect in enumerate(item.effects)
    ]
    heads = ("parameter", "objective", "share", "value", "machines", "best", "median")
    yield html_table(heads, rows, words=2)


def _roofline(spec: Spec, label: str, row: Row, cost: Cost) -> Iterator[str]:
    config = row.machine.config
    assert config is not None
    peak = config.macs_per_cycle
    marks = [
        Mark(
            layer.macs / layer.bytes_moved,
            layer.macs / layer.cycles,
            f"{layer.name}: {layer.cycles:,} cycles, {layer.macs / layer.cycles / peak:.1%}",
        )
        for layer in cost.layers
        if layer.macs and layer.bytes_moved and layer.cycles
    ]
    if not marks:
        return
    yield f"<h2>Roofline of {escape(label)}</h2>"
    yield (
        f"<p>Layers on the machine of the front that is best in {spec.objectives[0]}, point "
        f"{row.point}: {peak:,} MACs per cycle, {config.bus_bytes} bytes per cycle.</p>"
    )
    yield roofline(marks, peak, config.bus_bytes, ("MACs per byte", "MACs per cycle"))


def _skipped(exploration: Exploration) -> Iterator[str]:
    counts = [
        (status, reason, f"{count:,}")
        for (status, reason), count in exploration.counts.most_common()
        if status != OK
    ]
    if counts:
        yield "<h2>Points without a result</h2>"
        yield html_table(("status", "reason", "points"), counts, words=2)
