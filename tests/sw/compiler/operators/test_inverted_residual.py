"""Inverted residuals: expansion, depthwise convolution and projection in one tile."""

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
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import PerChannelScale
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import FixedPoint
from amaranth_vta.sw.compiler.operators.building_blocks.identity import identity_weights
from amaranth_vta.sw.compiler.operators.building_blocks.residual import Addition
from amaranth_vta.sw.compiler.operators.inverted_residual import (
    InvertedResidual,
    inverted_residual,
    is_possible,
)
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.workload import choose
from tests.support.seeds import each_seed
from tests.sw.compiler.operators.test_expanded_conv2d import (
    parameters,
    random_workload,
    wanted,
)

Array = npt.NDArray[Any]
CONFIGS = ["tiny-extended", "pynq-extended"]
ADDED = FixedPoint((5, 3), 7, 4, -2, -100, 120), FixedPoint((77, 91), 3, 0, 1, -90, 99, scale=0.01)


def random_case(
    seed: int, config: str, expands: bool = True
) -> tuple[InvertedResidual, Environment]:
    """A random case, with an expansion or without, with a tile that fits the machine."""
    pick, env = random.Random(seed), Environment(PRESETS[config])
    while True:
        expanded = random_workload(pick, env)
        filtered = expanded.depthwise.group
        projection = replace(
            expanded.expansion,
            inputs=expanded.depthwise.groups,
            outputs=pick.randint(1, 2),
            height=filtered.output_height,
            width=filtered.output_width,
            requantize=PerChannelScale(
                then=pick.choice([(), *((Addition(item),) for item in ADDED)])
            ),
            terms=pick.choice([1, 1, 2]),
        )
        workload = InvertedResidual(expanded if expands else expanded.depthwise, projection)
        if isfinite(choose(workload, env.config).cycles):
            assert is_possible(workload, env.config)
            return workload, env


def operands(
    workload: InvertedResidual, args: Sequence[Tensor], env: Environment, seed: int
) -> list[Array]:
    """Values of all arguments but the output."""
    rng = np.random.default_rng(seed)
    found = []
    for arg in args[:-1]:
        if arg.name == "identity":
            found.append(identity_weights(env).reshape(arg.shape))
        elif arg.name == "addition":
            addition = workload.projection.addition
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


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("expands", [True, False])
@each_seed(range(12), daily=4)
def test_random_ones_are_what_their_expression_is(
    seed: int, expands: bool, config: str, run: Any
) -> None:
    workload, env = random_case(seed, config, expands)
    function = inverted_residual(workload, env)
    inputs = operands(workload, function.args, env, seed)
    want = wanted(function.args, inputs)
    np.testing.assert_array_equal(run(function, inputs, order=f"random:{seed}"), want)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("expands", [True, False])
@each_seed(range(6), daily=2)
def test_any_tiles_give_the_same(
    seed: int, expands: bool, config: str, interpreted: Any, run: Any
) -> None:
    """The results are the same after every pass, in reverse order of execution, and on the RTL."""
    workload, env = random_case(seed, config, expands)
    knobs = random.Random(seed).choice(list(choose(workload, env.config).ranked))
    schedule = workload.scheduled(env, knobs)
    inputs = operands(workload, schedule[1], env, seed)
    want = wanted(schedule[1], inputs)
    if (config, seed) == ("tiny-extended", 0):
        interpreted(schedule, inputs, want, env)
    function = inverted_residual(workload, env, knobs)
    np.testing.assert_array_equal(run(function, inputs, order="reverse"), want)
    if (config, seed) == ("tiny-extended", 0):
        np.testing.assert_array_equal(run(function, inputs, device="rtl"), want)
