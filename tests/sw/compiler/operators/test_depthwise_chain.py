"""Depthwise convolutions fused with the 1×1 convolutions next to them."""

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
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import FixedPoint
from amaranth_vta.sw.compiler.operators.building_blocks.identity import identity_weights
from amaranth_vta.sw.compiler.operators.building_blocks.residual import Addition
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.depthwise_chain import (
    DepthwiseChain,
    depthwise_chain,
    is_possible,
)
from amaranth_vta.sw.compiler.operators.grouped_conv2d import GroupedConv2d, taps_at_once
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.workload import choose
from tests.support.seeds import each_seed

Array = npt.NDArray[Any]
CONFIGS = ["tiny-extended", "pynq-extended"]
# Whether there is an expansion, and a projection.
KINDS = {"expanded": (True, False), "projected": (False, True), "both": (True, True)}
ADDED = FixedPoint((5, 3), 7, 4, -2, -100, 120), FixedPoint((77, 91), 3, 0, 1, -90, 99, scale=0.01)


def random_case(seed: int, config: str, kind: str = "both") -> tuple[DepthwiseChain, Environment]:
    """A random case of this kind, with a tile that fits the machine."""
    pick, env = random.Random(seed), Environment(PRESETS[config])
    while True:
        workload = random_chain(pick, env, kind)
        if isfinite(choose(workload, env.config).cycles):
            assert is_possible(workload, env.config)
            return workload, env


def random_chain(pick: random.Random, env: Environment, kind: str = "both") -> DepthwiseChain:
    """Random sizes: kernels of 2, 3 and 5 rows, strides 1 and 2, any padding, one or two images."""
    expands, projects = KINDS[kind]
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
    filters = replace(
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
    taps = taps_at_once(channels, channels, channels, kernel, filters.dilations, env.config)
    depthwise = GroupedConv2d(groups, filters, taps, alike=pick.random() < 0.25)
    projection = replace(
        expansion,
        inputs=groups,
        outputs=pick.randint(1, 2),
        height=filters.output_height,
        width=filters.output_width,
        requantize=PerChannelScale(then=pick.choice([(), *((Addition(item),) for item in ADDED)])),
        terms=pick.choice([1, 1, 2]),
    )
    return DepthwiseChain(
        expansion if expands else None, depthwise, projection if projects else None
    )


def parameters(arg: Tensor, rng: np.random.Generator) -> Array:
    """Random parameters of REQUANTIZE, with which results use most of their range."""
    *channels, _, batch, block = arg.shape
    count = int(np.prod(channels)) * block
    scale = rng.uniform(0.004, 0.03, count)
    found = te.requantization_parameters(rng.integers(-90, 90, count), scale, -5, -128, 110)
    found = np.moveaxis(found.reshape(*channels, 1, block, -1), -1, -3)
    return np.repeat(found, batch, axis=-2)


def operands(
    workload: DepthwiseChain, args: Sequence[Tensor], env: Environment, seed: int
) -> list[Array]:
    """Values of all arguments but the output."""
    rng = np.random.default_rng(seed)
    found = []
    for arg in args[:-1]:
        if arg.name == "identity":
            found.append(identity_weights(env).reshape(arg.shape))
        elif arg.name == "addition":
            addition = workload.last.addition
            assert addition is not None
            found.append(addition.sum.parameters(env))
        elif "parameters" in arg.name:
            found.append(parameters(arg, rng))
        else:
            found.append(rng.integers(-40, 40, arg.shape).astype(np.int8))
        taps = workload.depthwise.taps
        if arg.name == "w" and taps > 1:
            # Columns of a tile beyond the taps.
            found[-1][..., 2 * taps :] = 0
    return found


def wanted(args: Sequence[Tensor], inputs: list[Array]) -> Array:
    want = te.evaluate(args[-1], dict(zip(args, inputs, strict=False)))
    assert len(np.unique(want)) > 9
    return want


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("kind", KINDS)
@each_seed(range(12), daily=4)
def test_random_ones_are_what_their_expression_is(
    seed: int, kind: str, config: str, run: Any
) -> None:
    workload, env = random_case(seed, config, kind)
    function = depthwise_chain(workload, env)
    inputs = operands(workload, function.args, env, seed)
    want = wanted(function.args, inputs)
    np.testing.assert_array_equal(run(function, inputs, order=f"random:{seed}"), want)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("kind", KINDS)
@each_seed(range(6), daily=2)
def test_any_tiles_give_the_same(
    seed: int, kind: str, config: str, interpreted: Any, run: Any
) -> None:
    """The results are the same after every pass, in reverse order of execution, and on the RTL."""
    workload, env = random_case(seed, config, kind)
    knobs = random.Random(seed).choice(list(choose(workload, env.config).ranked))
    schedule = workload.scheduled(env, knobs)
    inputs = operands(workload, schedule[1], env, seed)
    want = wanted(schedule[1], inputs)
    if (config, seed) == ("tiny-extended", 0):
        interpreted(schedule, inputs, want, env)
    function = depthwise_chain(workload, env, knobs)
    np.testing.assert_array_equal(run(function, inputs, order="reverse"), want)
    if (config, seed) == ("tiny-extended", 0):
        np.testing.assert_array_equal(run(function, inputs, device="rtl"), want)
