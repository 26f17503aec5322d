"""Convolutions and matrix products of the operator library, after every pass and on the RTL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import (
    PerChannelScale,
    Requantization,
    RoundingShift,
    WholeSums,
)
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.dense import Dense
from amaranth_vta.sw.compiler.tuner.tiled_product import Tiling
from amaranth_vta.sw.compiler.tuner.workload import tuned


@pytest.mark.parametrize("config", ["tiny", "tiny-extended"])
@pytest.mark.parametrize(
    "kind",
    [
        "strides",
        "dilations",
        "dense",
        "constants in blocks",
        "row sums",
        "row sums of images",
        "sums of rows",
        "sums of images",
    ],
)
def test_no_pass_changes_what_a_product_does(
    config: str, kind: str, interpreted: Any, run: Any, some: Callable[..., Any]
) -> None:
    env = Environment(PRESETS[config])
    requantize: Requantization = (
        PerChannelScale() if env.config.requantize else RoundingShift(3, -100, 90)
    )
    if kind.startswith("sums"):
        requantize = WholeSums(4)
    workload: Any = Dense(3, 2, 3, requantize)
    knobs: Any = Tiling(2, 2, inputs=1, ahead=True, in_turn=bool(env.config.overlap))
    if kind == "constants in blocks":
        workload = Dense(3, 2, 35, requantize)
        held = workload.outputs_held(knobs, env.config)
        assert held < 35 // 2 if knobs.in_turn else held == 2
    if kind == "row sums":
        workload = Dense(3, 2, 3, requantize, groups=2, row_sums=True)
        knobs = Tiling(2, 2, inputs=2, ahead=True, in_turn=bool(env.config.overlap))
    if kind == "row sums of images":
        workload = Conv2d(1, 2, 3, 5, 4, (2, 2), requantize, strides=(2, 1), pads=(1, 0, 1, 1))
        workload = replace(workload, row_sums=True)
        knobs = Tiling(2, 2, 3, 2, 2, ahead=True, in_turn=bool(env.config.overlap))
    if kind == "strides":
        workload = Conv2d(1, 2, 2, 4, 3, (2, 2), requantize, strides=(2, 1), pads=(1, 0, 1, 1))
        knobs = Tiling(1, 2, 2, 2, 2, ahead=True, in_turn=bool(env.config.overlap))
    if kind == "sums of images":
        workload = Conv2d(1, 2, 2, 4, 3, (2, 2), requantize, strides=(2, 1), pads=(1, 0, 1, 1))
        knobs = Tiling(1, 2, 2, 2, 2, ahead=True, in_turn=bool(env.config.overlap))
    if kind == "dilations":
        workload = Conv2d(1, 1, 2, 4, 5, (2, 2), requantize, dilations=(2, 3), pads=(0, 1, 1, 0))
        knobs = Tiling(2, 2, 3, 1, 1, weights_outside=False)
    schedule = workload.scheduled(env, knobs)
    args, rng = schedule[1], np.random.default_rng(0)
    x, w = (np.clip(some(rng, arg), -16, 16) for arg in args[:2])
    shape = args[2].shape
    if isinstance(requantize, PerChannelScale):
        channels = prod(shape[:-3]) * shape[-1]
        scale = rng.uniform(0.005, 0.1, channels)
        parameters = te.requantization_parameters(
            rng.integers(-90, 90, channels), scale, 3, -99, 99
        )
        tiles = np.moveaxis(parameters.reshape(*shape[:-3], 1, shape[-1], -1), -1, -3)
        constants = np.repeat(tiles, shape[-2], axis=-2)
    else:
        constants = rng.integers(-90, 90, shape).astype(np.int32)
    others = [np.clip(some(rng, arg), -16, 16) for arg in args[3:-1]]
    if isinstance(requantize, WholeSums):
        others = [requantize.shifts(env)]
    inputs = [x, w, constants, *others]
    want = te.evaluate(args[-1], dict(zip(args, inputs, strict=False)))
    assert len(np.unique(want)) > 8
    interpreted(schedule, inputs, want, env)
    function = tuned(workload, env, knobs, kind)
    np.testing.assert_array_equal(run(function, inputs, device="rtl"), want)
