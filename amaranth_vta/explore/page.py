"""The HTML page of an exploration, live and final."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from amaranth_vta.fpga.chips import RESOURCES
from amaranth_vta.report.html import html_page, html_table
from amaranth_vta.report.text_table import counted

from .evaluate import Cost
from .exploration import Exploration
from .folder import MACHINES
from .front import Sensitivity, sensitivities
from .implementation import Implemented
from .machines import CandidateMachine
from .plots import BEST, ROOF, STYLE, Mark, number, roofline, scatter
from .results import OK, Row, clock_mhz, objectives, utilization
from .search import Values
from .spec import MACHINE_COUNT, METRICS, Spec

_REFRESH_SECONDS = 5
# Width of a bar of 100 %, as a fraction of the page; the rest is for the number after it.
_LONGEST = 0.8


def machine_name(rank: int) -> str:
    """File name of the machine with this ``rank`` on the front, from 0."""
    return f"front-{rank + 1:02d}.json"


def live_page(exploration: Exploration) -> str:
    """HTML that reloads itself: the progress, and the front so far."""
    spec = exploration.spec
    done = len(exploration.rows)
    parts = [
        f'<meta http-equiv="refresh" content="{_REFRESH_SECONDS}"/>',
        "<h1>Exploration, running</h1>",
        f"<p>{counted(done, 'point')} so far, of at most {_most(spec):,}.</p>",
        *_overview(exploration),
    ]
    return html_page("Exploration", parts, STYLE)


def final_page(exploration: Exploration, costs: Mapping[str, tuple[Row, Cost]], folder: str) -> str:
    """HTML with all results. ``costs`` has the best point of each network and its cost by layer;
    ``folder`` is the path for files in the commands.
    """
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
        f"{counted(len(exploration.rows), 'point')} of {spec.combinations:,} combinations, "
        f"{good:,} within the limits, chosen by {spec.search.method}; networks: "
        f"{escape(', '.join(exploration.networks))}; memory: {', '.join(spec.memories)}. "
        f"Chip: {chip.name}, {clock_mhz(spec):g} MHz ({_source_of_clock(spec)}). Cycles are "
        "estimated, area comes from a fitted model; simulated and synthesized values are marked."
        f"{_of_systems(spec)}"
    )


def _of_systems(spec: Spec) -> str:
    """What numbers of several machines mean; empty if there is one."""
    if MACHINE_COUNT not in spec.parameters:
        return ""
    use = "share the layers of each image" if spec.split else "run an image each at the same time"
    return (
        f" Several machines {use}; the area includes all of them, their arbiter and its buffers. "
        "The clock applies to a single machine, since no system was placed and routed."
    )


def _source_of_clock(spec: Spec) -> str:
    chip = spec.limits.chip
    if spec.clock_mhz:
        return "given"
    return f"{chip.routed}, placed and routed" if chip.routed else "assumed"


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
    """Heads and rows of a table of the front."""
    best = exploration.best
    columns: dict[str, list[str]] = {"machine": [machine_name(rank) for rank in range(len(best))]}
    columns |= _chosen(exploration.spec, best) | _area(exploration.spec, best)
    if len(exploration.networks) * len(exploration.spec.memories) == 1:
        columns |= _runs([rows[0] for rows in best])
    columns |= _made([rows[0].made for rows in best])
    return list(columns), [list(line) for line in zip(*columns.values(), strict=True)]


def _chosen(spec: Spec, best: Sequence[Sequence[Row]]) -> dict[str, list[str]]:
    """Columns of the objectives and of parameters that differ between machines."""
    numbers = [objectives(spec, rows) or () for rows in best]
    values = [dict(zip(spec.parameters, rows[0].machine.values, strict=True)) for rows in best]
    varied = [key for key, choices in spec.parameters.items() if len(choices) > 1]
    return {
        name: [_number(line[place]) for line in numbers]
        for place, name in enumerate(spec.objectives)
    } | {key: [str(line[key]) for line in values] for key in varied}


def _area(spec: Spec, best: Sequence[Sequence[Row]]) -> dict[str, list[str]]:
    areas = [area for rows in best if (area := rows[0].machine.area) is not None]
    return {
        name: [f"{getattr(area, name):,g}" for area in areas]
        for name in RESOURCES
        if name not in spec.objectives
    } | {f"of {spec.limits.chip.name}": [f"{spec.limits.chip.share(area):.0%}" for area in areas]}


def _runs(rows: Sequence[Row]) -> dict[str, list[str]]:
    found = {"utilization": [f"{utilization(row):.1%}" for row in rows]}
    if any(row.rtl for row in rows):
        found["on RTL"] = [_simulated(row) for row in rows]
    return found


def _made(made: Sequence[Implemented | None]) -> dict[str, list[str]]:
    """Columns with results of the FPGA tools."""
    found = {}
    if any(made):
        found["lut by synthesis"] = [f"{item.lut:,}" if item else "" for item in made]
    if any(item and item.mhz for item in made):
        found["MHz routed"] = [f"{item.mhz:.1f}" if item and item.mhz else "" for item in made]
    return found


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
    yield "<p>Each machine of the front is a file; these run the networks on it.</p>"
    lines = []
    for rank, rows in enumerate(exploration.best):
        machine = f"{folder}/{MACHINES}/{machine_name(rank)}"
        system = _system_options(rows[0].machine)
        use = f"{system}{' --split' if system and exploration.spec.split else ''}"
        for row in rows:
            source = source_of(exploration.spec, row.network)
            command = "run" if source.endswith((".onnx", ".tflite")) else "bench"
            call = f"vta {command} {source} --config {machine}{use} --dram {row.memory} --device"
            lines += [f"{call} estimate --timing-only", f"{call} rtl"]
        lines += [f"vta verilog --config {machine}{system} -o vta.v", ""]
    yield f'<div class="scroll"><pre>{escape(chr(10).join(lines))}</pre></div>'


def _system_options(machine: CandidateMachine) -> str:
    """The options for several machines; empty for one."""
    system = machine.system
    assert system is not None
    if system.is_single:
        return ""
    return f" --machines {system.machines} --memory-bus {system.bus_bits}"


def source_of(spec: Spec, label: str) -> str:
    """The file of the network ``label``, or the name of its generator."""
    return next(name for name in spec.networks if Path(name).stem == label)


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
    for name in spec.objectives:
        yield f"<h3>{METRICS[name]}</h3>"
        yield _shares([item for item in found if item.objective == name])
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


def _shares(items: Sequence[Sensitivity]) -> str:
    """Bars: the share of each parameter, largest first."""
    lines = ['<div class="bars">']
    for item in sorted(items, key=lambda item: -item.share):
        style = f"width:{item.share * _LONGEST:.1%};background:{ROOF}"
        lines.append(
            f'<div class="name">{item.parameter}</div><div class="line"><div class="bar" '
            f'style="{style}"></div><span class="number">{item.share:.0%}</span></div>'
        )
    return "\n".join([*lines, "</div>"])


def _roofline(spec: Spec, label: str, row: Row, cost: Cost) -> Iterator[str]:
    system = row.machine.system
    assert system is not None
    peak, bandwidth = system.macs_per_cycle, system.bus_bytes
    marks = [
        Mark(
            layer.macs / layer.bytes_moved,
            layer.macs / layer.cycles,
            f"{layer.name}: {layer.cycles:,} cycles, {layer.macs / layer.cycles / peak:.1%}",
        )
        for layer in cost.layers
        if layer.macs and layer.bytes_moved and layer.cycles
    ]
    if not marks and system.is_single:
        return
    yield f"<h2>Roofline of {escape(label)}</h2>"
    if not marks:
        yield (
            "<p>The fastest machines run an image each, and only whole launches are timed: there "
            "are no cycles of layers to show.</p>"
        )
        return
    yield (
        f"<p>Layers on the machine of the front that is best in {spec.objectives[0]}, point "
        f"{row.point}: {peak:,} MACs per cycle, {bandwidth} bytes per cycle.</p>"
    )
    yield roofline(marks, peak, bandwidth, ("MACs per byte", "MACs per cycle"))


def _skipped(exploration: Exploration) -> Iterator[str]:
    counts = [
        (status, reason, f"{count:,}")
        for (status, reason), count in exploration.counts.most_common()
        if status != OK
    ]
    if counts:
        yield "<h2>Points without a result</h2>"
        yield html_table(("status", "reason", "points"), counts, words=2)
