"""Results of an exploration: rows of results.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import exp, log
from pathlib import Path
from typing import IO

from amaranth_vta.fpga.chips import RESOURCES
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.system.parameters import SystemConfig

from .evaluate import Cost, Simulated
from .implementation import Implemented
from .machines import CandidateMachine, exceeded
from .spec import ENERGIES, MACHINE_COUNT, MEMORY_BUS, Spec

OK, FAILED, OVER_LIMIT = "ok", "failed", "over limit"
# Column of results.csv for each attribute of `Implemented`.
_MADE = {
    **{name: f"synthesized_{name}" for name in RESOURCES},
    "mhz": "routed_mhz",
}


@dataclass(frozen=True)
class Run:
    """The estimated cost of ``images``, as in `Cost`; ``energy`` in picojoules by its name in
    `ENERGIES`. All of it in columns of results.csv.
    """

    images: int
    cycles: int
    bound_cycles: int
    macs: int
    host_macs: int
    bytes: int
    energy: dict[str, int]

    @classmethod
    def of(cls, cost: Cost) -> Run:
        return cls(
            images=cost.images,
            cycles=cost.cycles,
            bound_cycles=cost.bound_cycles,
            macs=cost.macs,
            host_macs=cost.host_macs,
            bytes=cost.bytes_moved,
            energy={f"energy_{name}": round(energy) for name, energy in cost.energy.items()},
        )

    @classmethod
    def of_cells(cls, cells: Mapping[str, str]) -> Run:
        """The run in a line of the file."""
        counts = {name: int(cells[name]) for name in _COUNTS}
        return cls(**counts, energy={name: int(cells[name]) for name in ENERGIES})

    @property
    def cells(self) -> dict[str, int]:
        return {**{name: getattr(self, name) for name in _COUNTS}, **self.energy}


_COUNTS = tuple(item.name for item in fields(Run) if item.name != "energy")


@dataclass(frozen=True)
class Row:
    """A point: a machine with a network and a memory model, and its result."""

    point: int
    machine: CandidateMachine
    network: str
    memory: str
    status: str
    reason: str
    run: Run | None = None
    front: bool = False
    rtl: Simulated | None = None
    made: Implemented | None = None


def row_of_run(spec: Spec, row: Row, run: Run) -> Row:
    """``row`` with its run, and the resulting status: `OK`, ``failed`` or ``over limit``."""
    if not run.macs:
        return replace(row, status=FAILED, reason="nothing runs on the machine", run=run)
    host_share = run.host_macs / (run.macs + run.host_macs)
    found = replace(row, run=run)
    reason = exceeded(spec, metrics(spec, found), host_share)
    return replace(found, status=OVER_LIMIT if reason else OK, reason=reason)


def metrics(spec: Spec, row: Row) -> dict[str, float]:
    """The `METRICS` of a row with a run."""
    run, area = row.run, row.machine.area
    assert run is not None
    assert area is not None
    cycles = run.cycles / run.images
    return {
        "cycles": cycles,
        "seconds": cycles / (clock_mhz(spec) * 1e6),
        "bytes": run.bytes / run.images,
        **{name: energy / run.images for name, energy in run.energy.items()},
        "lut": area.lut,
        "ff": area.ff,
        "dsp": area.dsp,
        "bram36": area.bram36,
        "area": spec.limits.chip.share(area),
    }


def utilization(row: Row) -> float:
    """The fraction of the multipliers of all machines that a row with a run uses, on average."""
    assert row.run is not None
    assert row.machine.system is not None
    return row.run.macs / row.run.cycles / row.machine.system.macs_per_cycle


def clock_mhz(spec: Spec) -> float:
    """The clock of the SPEC, by default that of the chip, in MHz."""
    return spec.clock_mhz or spec.limits.chip.clock_mhz


def objectives(spec: Spec, rows: Sequence[Row]) -> tuple[float, ...] | None:
    """Geometric mean of each objective over the ``rows`` of a machine; None unless all are `OK`."""
    if any(row.status != OK for row in rows):
        return None
    found = [metrics(spec, row) for row in rows]
    return tuple(
        exp(sum(log(max(values[name], 1e-9)) for values in found) / len(found))
        for name in spec.objectives
    )


# The file.


def columns(spec: Spec) -> list[str]:
    keys = [*(item.name.upper() for item in fields(Config)), MACHINE_COUNT, MEMORY_BUS]
    return [
        *("point", *spec.parameters, *(key for key in keys if key not in spec.parameters)),
        *("network", "memory", "status", "reason"),
        *_COUNTS,
        *ENERGIES,
        *("seconds", "mhz", "utilization", *RESOURCES, "area"),
        *("front", "rtl_cycles", "rtl_mismatches"),
        *_MADE.values(),
    ]


def cells(spec: Spec, row: Row) -> dict[str, object]:
    """A line of the file, by column, without unknown values."""
    machine, run = row.machine, row.run
    found: dict[str, object] = {
        **(_keys(machine.system) if machine.system else {}),
        **dict(zip(spec.parameters, machine.values, strict=True)),
        "point": row.point,
        "network": row.network,
        "memory": row.memory,
        "status": row.status,
        "reason": row.reason,
        "front": int(row.front),
    }
    if machine.area is not None:
        found |= {name: getattr(machine.area, name) for name in RESOURCES}
        found["area"] = round(spec.limits.chip.share(machine.area), 4)
    if run is not None:
        found |= run.cells
        found["mhz"] = clock_mhz(spec)
        found["seconds"] = f"{metrics(spec, row)['seconds']:.6g}"
        if run.cycles:
            found["utilization"] = round(utilization(row), 4)
    if row.rtl is not None:
        found |= {"rtl_cycles": row.rtl.cycles, "rtl_mismatches": row.rtl.mismatches}
    if row.made is not None:
        found |= {column: getattr(row.made, name) for name, column in _MADE.items()}
    return found


def _keys(system: SystemConfig) -> dict[str, int]:
    """The parameters of machines and of their system, by column."""
    return {
        **system.config.to_dict(),
        MACHINE_COUNT: system.machines,
        MEMORY_BUS: system.bus_bits,
    }


def append_row(spec: Spec, file: IO[str], row: Row) -> None:
    """Writes a line and flushes the file."""
    writer = csv.DictWriter(file, columns(spec), lineterminator="\n")
    writer.writerow(cells(spec, row))
    file.flush()


def table_text(spec: Spec, rows: Iterable[Row]) -> str:
    """The whole file, ordered by point."""
    ordered = sorted(rows, key=lambda row: row.point)
    return _text(columns(spec), [cells(spec, row) for row in ordered])


def _text(heads: list[str], lines: Iterable[dict[str, object]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


Known = dict[tuple[tuple[int, ...], str, str], Run | None]


def known_runs(spec: Spec, path: Path) -> Known:
    """The runs in a file, by parameter values, network and memory; None for a line without a run.

    An incomplete last line, left by a killed process, is ignored.
    """
    found: Known = {}
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        for line in _whole_lines(file):
            try:
                values = tuple(int(line[key]) for key in spec.parameters)
                name = values, line["network"], line["memory"]
                found[name] = Run.of_cells(line) if line["cycles"] != "" else None
            except (KeyError, TypeError, ValueError):
                continue  # damaged
    return found


def _whole_lines(file: IO[str]) -> Iterator[dict[str, str]]:
    text = file.read()
    return iter(csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1])))
