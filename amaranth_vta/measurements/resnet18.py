"""The convolutions of ResNet-18, one row per layer, tiled for any machine: `rows`.

resnet18.json lists the layers, in channels and pixels, with the number of times that each occurs.
For some presets it also has knobs tuned by hand, in tiles of that preset, as a reference for the
compiler's choice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import log2, prod
from pathlib import Path
from typing import Any

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import (
    PerChannelScale,
    Requantization,
    RoundingShift,
)
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.tuner.tiled_product import Tiling
from amaranth_vta.sw.runtime.network.tile_layout import tiles


@dataclass(frozen=True)
class LayerRow:
    """One layer, for BATCH images; ``macs`` counts MACs without channel padding, ``knobs`` is None
    without hand-tuned knobs.
    """

    name: str
    count: int
    workload: Conv2d
    macs: int
    knobs: Tiling | None


def rows(config: Config) -> list[LayerRow]:
    """The layers in network order, for the machine of ``config``."""
    file = _file()
    found = (knobs for name, knobs in file["knobs"].items() if PRESETS[name] == config)
    by_hand: dict[str, Any] = next(found, {})
    return [_row(layer, by_hand.get(layer["name"]), config) for layer in file["layers"]]


def has_knobs(config: Config) -> bool:
    """Whether there are hand-tuned knobs for the machine of ``config``."""
    return all(row.knobs is not None for row in rows(config))


def _row(layer: Mapping[str, Any], knobs: Mapping[str, Any] | None, config: Config) -> LayerRow:
    summed = layer["channels"] * prod(layer["kernel"])
    workload = Conv2d(
        batch=1,
        inputs=tiles(layer["channels"], config.block_in),
        outputs=tiles(layer["outputs"], config.block_out),
        height=layer["size"][0],
        width=layer["size"][1],
        kernel=layer["kernel"],
        requantize=_requantization(summed, config),
        strides=layer["strides"],
        pads=layer["pads"],
        is_first=True,
    )
    pixels = workload.output_height * workload.output_width
    return LayerRow(
        name=layer["name"],
        count=layer["count"],
        workload=workload,
        macs=config.batch * pixels * summed * layer["outputs"],
        knobs=None if knobs is None else Tiling(**knobs),
    )


def _requantization(summed: int, config: Config) -> Requantization:
    """REQUANTIZE, as in networks, if the machine has it; else a shift that spreads results over
    their whole range.
    """
    if config.requantize:
        return PerChannelScale()
    # The standard deviation of a sum of n random products is √n times that of one product.
    deviation = 2.0 ** (config.inp_width + config.wgt_width) / 12 * summed**0.5
    limit = 1 << config.out_width - 1
    shift = max(0, min(round(log2(deviation / limit * 2)), config.acc_width - 2))
    return RoundingShift(shift, -limit, limit - 1)


@cache
def _file() -> dict[str, Any]:
    text = (Path(__file__).parent / "resnet18.json").read_text(encoding="utf-8")
    return json.loads(text, object_hook=_with_tuples)


def _with_tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    """``fields`` with lists as tuples, so that workloads compare equal."""
    return {
        name: tuple(value) if isinstance(value, list) and name != "layers" else value
        for name, value in fields.items()
    }
