"""Loads JSON that `--json` of ``vta run`` and ``vta bench`` wrote: `load_measured`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from amaranth_vta.errors import VtaError
from amaranth_vta.hw.config import unique_keys
from amaranth_vta.sw.runtime.array_file import FileLimitError, read_limited

from .chart import COUNTERS


class MeasuredError(VtaError, ValueError):
    """A file is not the JSON of a run or benchmark with cycles."""


@dataclass(frozen=True)
class MeasuredLayer:
    """A layer on the machine; ``macs`` and ``counters`` are totals over all its runs."""

    name: str
    operator: str
    macs: int
    runs: int
    counters: Mapping[str, int]

    @property
    def cycles(self) -> float:
        """Cycles per run."""
        return self.counters["cycles"] / self.runs

    @property
    def macs_per_run(self) -> float:
        return self.macs / self.runs


@dataclass(frozen=True)
class MeasuredHost:
    """The host's work in one run of ``images``: its ``macs``, its ``operators`` by kind, without
    layout conversions, and their ``names`` if the file has them.
    """

    images: int
    macs: int
    operators: Counter[str]
    names: frozenset[str]


@dataclass(frozen=True)
class MeasuredRun:
    """The contents of one file; ``peak`` is the machine's MACs per cycle. ``host`` is None for a
    file without a summary of the host.
    """

    path: str
    peak: int
    is_estimated: bool
    layers: tuple[MeasuredLayer, ...]
    host: MeasuredHost | None = None

    @property
    def images(self) -> int:
        """Number of images per run."""
        return self.host.images if self.host is not None else 1

    @property
    def machine_macs(self) -> float:
        """The MACs of one run on the machine."""
        return sum(layer.macs_per_run for layer in self.layers)

    @property
    def host_share(self) -> float | None:
        """The host's share of the MACs; None if unknown or without MACs."""
        if self.host is None:
            return None
        total = self.machine_macs + self.host.macs
        return self.host.macs / total if total else None

    def per_image(self) -> MeasuredRun:
        """The same measurements, converted to runs of one image."""
        if self.host is None or self.images == 1:
            return self
        layers = (replace(layer, runs=layer.runs * self.images) for layer in self.layers)
        host = replace(self.host, images=1, macs=self.host.macs // self.images)
        return replace(self, layers=tuple(layers), host=host)


def load_measured(path: str) -> MeasuredRun:
    """The measurements in a file. Raises `MeasuredError`, or `OSError` if it cannot be read."""
    try:
        data = json.loads(read_limited(path), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError, FileLimitError) as error:
        raise MeasuredError(f"{path} is not JSON: {error}") from None
    try:
        layers = tuple(_layers(data["layers"]))
        peak, is_estimated = _count(data["peak_macs_per_cycle"]), bool(data["estimated"])
        host = _host(data)
    except (AttributeError, KeyError, TypeError, ValueError):
        wanted = "what --json of `vta run` or `vta bench` writes"
        raise MeasuredError(f"{path} is not {wanted}") from None
    if not layers:
        if host is not None and not data["summary"].get("layers_on_machine"):
            raise MeasuredError(f"{path} has no layer on the machine: there is nothing to compare")
        raise MeasuredError(
            f"{path} has no cycles: run on a device that counts them, such as --device estimate"
        )
    return MeasuredRun(path, peak, is_estimated, layers, host)


def _host(data: Mapping[str, Any]) -> MeasuredHost | None:
    if "summary" not in data:
        return None
    summary = data["summary"]
    operators: Counter[str] = Counter()
    for group in summary["host"]:
        operators += Counter({kind: _count(n) for kind, n in group["operators"].items()})
    del operators["layout"]
    names = frozenset(layer["name"] for layer in data["layers"] if layer["placed_on"] == "host")
    images = _count(data.get("images_per_run", 1)) or 1
    return MeasuredHost(images, _count(summary["macs_on_host"]), operators, names)


def _layers(entries: list[dict[str, Any]]) -> list[MeasuredLayer]:
    found = []
    for entry in entries:
        if entry["cycles"] is None:
            continue
        # Layers that share a launch, and machines without counters, have cycles only.
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
