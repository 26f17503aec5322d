"""Reads the JSON that `--json` of ``vta run`` and ``vta bench`` wrote: `load_measured`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from amaranth_vta.hw.config import unique_keys
from amaranth_vta.sw.runtime.array_file import FileLimitError, read_limited

from .chart import COUNTERS


class MeasuredError(ValueError):
    """A file is not the JSON of a run or benchmark with cycles."""


@dataclass(frozen=True)
class MeasuredLayer:
    """A layer on the machine; ``macs`` and ``counters`` are those of all its runs."""

    name: str
    operator: str
    macs: int
    runs: int
    counters: Mapping[str, int]

    @property
    def cycles(self) -> float:
        """Cycles per run."""
        return self.counters["cycles"] / self.runs


@dataclass(frozen=True)
class MeasuredRun:
    """The contents of one file; ``peak`` are the MACs per cycle of its machine."""

    path: str
    peak: int
    is_estimated: bool
    layers: tuple[MeasuredLayer, ...]


def load_measured(path: str) -> MeasuredRun:
    """The measurements in a file. Raises `MeasuredError`, or `OSError` if it cannot be read."""
    try:
        data = json.loads(read_limited(path), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError, FileLimitError) as error:
        raise MeasuredError(f"{path} is not JSON: {error}") from None
    try:
        layers = tuple(_layers(data["layers"]))
        peak, is_estimated = _count(data["peak_macs_per_cycle"]), bool(data["estimated"])
    except (KeyError, TypeError, ValueError):
        wanted = "what --json of `vta run` or `vta bench` writes"
        raise MeasuredError(f"{path} is not {wanted}") from None
    if not layers:
        raise MeasuredError(
            f"{path} has no cycles: run on a device that counts them, such as --device estimate"
        )
    return MeasuredRun(path, peak, is_estimated, layers)


def _layers(entries: list[dict[str, Any]]) -> list[MeasuredLayer]:
    found = []
    for entry in entries:
        if entry["cycles"] is None:
            continue
        # Layers in a launch of several, and machines without counters, have none.
        none = {**dict.fromkeys(COUNTERS, 0), "cycles": entry["cycles"]}
        counted = entry["counters"] if len(entry["counters"]) > 1 else none
        counters = {name: _count(counted[name]) for name in ("cycles", *COUNTERS)}
        if not counters["cycles"]:
            continue
        runs = _count(entry.get("runs", 1))
        name, operator = entry["name"], entry["operator"]
        if not (runs and isinstance(name, str) and isinstance(operator, str)):
            raise ValueError(entry)
        found.append(MeasuredLayer(name, operator, _count(entry["macs"]), runs, counters))
    return found


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(value)
    return value
