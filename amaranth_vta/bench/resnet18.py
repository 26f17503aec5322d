"""The convolutions of ResNet-18, a row a layer, in resnet18.json beside this file.

The file has, by the name of a preset, rows of a layer's name, how often the network has it, its
workload and knobs that were found by hand, in tiles of that preset; and its MACs, where padding
adds some. The knobs are what the compiler's own choice is measured against.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
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


@cache
def _file() -> dict[str, list[Row]]:
    text = (Path(__file__).parent / "resnet18.json").read_text(encoding="utf-8")
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
