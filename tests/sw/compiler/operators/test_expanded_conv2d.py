"""Depthwise convolutions fused with the preceding 1×1 convolution, tile by tile."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import PerChannelScale
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.expanded_conv2d import (
    ExpandedConv2d,
    expanded_conv2d,
    is_possible,
)
from amaranth_vta.sw.compiler.operators.grouped_conv2d import GroupedConv2d, taps_at_once
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.workload import choose
from tests.support.seeds import each_seed

Array = npt.NDArray[Any]
CONFIGS = ["tiny-extended", "pynq-extended"]


def random_case(seed: int, config: str) -> tuple[ExpandedConv2d, Environment]:
    """A random case with a tile that fits the machine."""
    pick, env = random.Random(seed), Environment(PRESETS[config])
    while True:
        workload = random_workload(pick, env)
        if isfinite(choose(workload, env.config).cycles):
            assert is_possible(workload, env.config)
            return workload, env


def random_workload(pick: random.Random, env: Environment) -> ExpandedConv2d:
    groups, terms = pick.randint(1, 3), pick.choice([1, 1, 2])
    kernel, strides = pick.choice([(3, 3), (3, 3), (5, 5), (2, 3)]), (pick.randint(1, 2),) * 2
    expansion = Conv2d(
        batch=pick.randint(1, 2),
        inputs=pick.randint(1, 3),
        outputs=groups,
        height=pick.randint(5, 9),
        width=pick.randint(5, 9),
        kernel=(1, 1),
        requantize=PerChannelScale(),
        terms=pick.choice([1, 1, 2]),
    )
    depthwise = replace(
        expansion,
        inputs=1,
        outputs=1,
        kernel=kernel,
        strides=strides,
        dilations=(1, pick.choice([1, 1, 2])),
        pads=(pick.randint(0, 2), pick.randint(0, 2), pick.randint(0, 2), pick.randint(0, 2)),
        pad_value=pick.choice([0, -128, 3]),
        terms=terms,
    )
    channels = groups * env.BLOCK_IN
    taps = taps_at_once(channels, channels, channels, kernel, depthwise.dilations, env.config)
    alike = pick.random() < 0.25
    return ExpandedConv2d(expansion, GroupedConv2d(groups, depthwise, taps, alike))


def parameters(arg: Tensor, rng: np.random.Generator) -> Array:
    """Random parameters of REQUANTIZE, with which results use most of their range."""
    *channels, _, batch, block = arg.shape
    count = int(np.prod(channels)) * block
    scale = rng.uniform(0.004, 0.03, count)
    found = te.requantization_parameters(rng.integers(-90, 90, count), scale, -5, -128, 110)
    found = np.moveaxis(found.reshape(*channels, 1, block, -1), -1, -3)
    return np.repeat(found, batch, axis=-2)


def operands(workload: ExpandedConv2d, args: Sequence[Tensor], seed: int) -> list[Array]:
    """Values of all arguments but the output."""
    rng = np.random.default_rng(seed)
    found = [
        parameters(arg, rng)
        if "parameters" in arg.name
        else rng.integers(-40, 40, arg.shape).astype(np.int8)
        for arg in args[:-1]
    ]
    if workload.depthwise.taps > 1:
        # Columns of a tile beyond the taps.
        found[3][..., 2 * workload.depthwise.taps :] = 0
    return found


def wanted(args: Sequence[Tensor], inputs: list[Array]) -> Array:
    want = te.evaluate(args[-1], dict(zip(args, inputs, strict=False)))
    assert len(np.unique(want)) > 9
    return want


@pytest.mark.parametrize("config", CONFIGS)
@each_seed(range(10), daily=4)
def test_random_ones_are_what_their_expression_is(seed: int, config: str, run: Any) -> None:
    workload, env = random_case(seed, config)
    function = expanded_conv2d(workload, env)
    inputs = operands(workload, function.args, seed)
    want = wanted(function.args, inputs)
    np.testing.assert_array_equal(run(function, inputs, order=f"random:{seed}"), want)


@pytest.mark.parametrize("config", CONFIGS)
@each_seed(range(5), daily=2)
def test_any_tiles_give_the_same(seed: int, config: str, interpreted: Any, run: Any) -> None:
    """The results are the same after every pass, in another order of execution, and on the RTL."""
    workload, env = random_case(seed, config)
    knobs = random.Random(seed).choice(list(choose(workload, env.config).ranked))
    schedule = workload.scheduled(env, knobs)
    inputs = operands(workload, schedule[1], seed)
    want = wanted(schedule[1], inputs)
    if (config, seed) == ("tiny-extended", 0):
        interpreted(schedule, inputs, want, env)
    function = expanded_conv2d(workload, env, knobs)
    np.testing.assert_array_equal(run(function, inputs, order="reverse"), want)
    if (config, seed) == ("tiny-extended", 0):
        np.testing.assert_array_equal(run(function, inputs, device="rtl"), want)
