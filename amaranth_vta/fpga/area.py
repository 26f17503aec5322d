"""What a machine takes of an FPGA, by a model fitted to synthesis: `estimate_area`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from amaranth_vta.hw.config import Config

MODEL = Path(__file__).with_name("area_model.json")
FAMILIES = ("xc7", "ecp5")
COLUMNS = ("lut", "ff", "dsp", "bram36")


@dataclass(frozen=True)
class Area:
    """LUTs (those that are memories and carries included), flip-flops, multipliers, and block RAMs
    in units of 36 kbit."""

    lut: int
    ff: int
    dsp: int
    bram36: float


def features(config: Config) -> dict[str, float]:
    """What LUTs, flip-flops and the rest grow with."""
    lanes = config.batch * config.block_out
    return {
        "machine": 1.0,
        "macs": config.macs_per_cycle,
        "lanes": lanes,
        "lanes requantize": lanes * config.requantize,
        "lanes overlap": lanes * config.overlap,
        "extensions": len(config.extensions),
        "bus bits": 8.0 * config.bus_bytes,
        "input bits": config.inp.element_bits,
        "index bits": sum(getattr(config, n).index_width for n in ("uop", "inp", "wgt", "acc")),
        "kbit": sum(
            getattr(config, n).element_bits * getattr(config, n).depth / 1024
            for n in ("uop", "inp", "wgt", "acc")
        ),
    }


def estimate_area(config: Config, family: str) -> Area:
    """The area of the machine of ``config``, flattened, on a ``family`` of `FAMILIES`."""
    model, found = _model()[family], features(config)
    numbers = {
        column: max(
            0.0, sum(weight * found[name] for name, weight in model[column]["weights"].items())
        )
        for column in COLUMNS
    }
    return Area(
        round(numbers["lut"]),
        round(numbers["ff"]),
        round(numbers["dsp"]),
        round(2 * numbers["bram36"]) / 2,
    )


@cache
def _model() -> dict[str, Any]:
    model: dict[str, Any] = json.loads(MODEL.read_text(encoding="utf-8"))
    return model
