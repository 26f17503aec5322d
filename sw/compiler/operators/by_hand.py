"""Knobs that were found by hand, a row a layer, in resnet18_knobs.json beside this file.

The file has, by the name of a preset, rows of a layer's name, how often its network has it, its
workload and its knobs, in tiles of that preset; and its MACs, where padding adds some.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from amaranth_vta.hw.config import PRESETS, Config

# Fields of a workload for which one set of knobs is as good as for others.
_NO_SIZES = frozenset({"requantize", "pad_value"})


@dataclass(frozen=True)
class Row:
    """One layer: ``workload`` and ``knobs`` are the fields of its operator's classes."""

    name: str
    count: int
    workload: Mapping[str, Any]
    knobs: Mapping[str, Any]
    macs: int | None


def rows(config: Config) -> list[Row]:
    """The rows for machines like ``config``; none if nobody has written any."""
    return [row for name, found in _file().items() if PRESETS[name] == config for row in found]


def knobs_by_hand(workload: Any, config: Config) -> Mapping[str, Any] | None:
    """The knobs for a ``workload`` of these sizes; None if it has no row."""
    sizes = {name: item for name, item in asdict(workload).items() if name not in _NO_SIZES}
    return next((row.knobs for row in rows(config) if row.workload == sizes), None)


@cache
def _file() -> dict[str, list[Row]]:
    text = (Path(__file__).parent / "resnet18_knobs.json").read_text(encoding="utf-8")
    return {
        preset: [
            Row(
                item["name"],
                item["count"],
                _with_tuples(item["workload"]),
                _with_tuples(item["knobs"]),
                item.get("macs"),
            )
            for item in found
        ]
        for preset, found in json.loads(text).items()
    }


def _with_tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
