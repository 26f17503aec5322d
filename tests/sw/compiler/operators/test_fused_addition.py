"""Convolutions fused with a residual addition: the results of two operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import (
    PerChannelScale,
    RoundingShift,
)
from amaranth_vta.sw.compiler.operators.building_blocks.exact_constants import (
    added,
    addition_constants,
)
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import Quantized
from amaranth_vta.sw.compiler.operators.building_blocks.identity import identity_weights
from amaranth_vta.sw.compiler.operators.building_blocks.residual import Addition
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.weighted_sum import WeightedSum
from amaranth_vta.sw.compiler.tuner.tiled_product import Tiling
from amaranth_vta.sw.compiler.tuner.workload import tuned
from tests.support.runtimes import estimated_cycles

# Scales of the other operand, of the convolution and of the sum: without ties, with ties, and with
# corrections, which need LOOKUP.
SCALES = [
    (Quantized(0.0237, 3), Quantized(0.0412, -7), Quantized(0.0451, 12)),
    (Quantized(0.5), Quantized(0.25), Quantized(1.0, 5)),
    (Quantized(0.9133040904998779), Quantized(0.8964420557022095), Quantized(1.0132163763046265)),
]


def scales_of(seed: int, env: Environment) -> tuple[Quantized, Quantized, Quantized]:
    return SCALES[seed % (3 if env.config.lookup else 2)]


def random_case(seed: int, config: str) -> tuple[Conv2d, Environment]:
    rng, env = np.random.default_rng(seed), Environment(PRESETS[config])
    scales = scales_of(seed, env)
    constants = addition_constants(*scales, env.config, added(*scales))
    kernel = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    then = (Addition(constants),)
    requantize = (
        PerChannelScale(then=then)
        if env.config.requantize
        else RoundingShift(4, -128, 127, then=then)
    )
    workload = Conv2d(
        batch=int(rng.integers(1, 3)),
        inputs=int(rng.integers(1, 4)),
        outputs=int(rng.integers(1, 4)),
        height=int(rng.integers(3, 9)),
        width=int(rng.integers(3, 9)),
        kernel=kernel,
        requantize=requantize,
        strides=(int(rng.integers(1, 3)), int(rng.integers(1, 3))),
        pads=tuple(int(rng.integers(0, size)) for size in (*kernel, *kernel)),  # type: ignore[arg-type]
    )
    return workload, env


def operands(
    workload: Conv2d, env: Environment, args: Any, some: Callable[..., Any], seed: int
) -> list[Any]:
    """Values of all arguments but the output."""
    rng = np.random.default_rng(seed)
    x, w = (np.clip(some(rng, args[at]), -16, 16) for at in (0, 2))
    residual, shape = some(rng, args[1]), args[3].shape
    if isinstance(workload.requantize, PerChannelScale):
        channels = shape[0] * shape[-1]
        parameters = te.requantization_parameters(
            rng.integers(-90, 90, channels), rng.uniform(0.01, 0.1, channels), 3, -128, 127
        )
        tiles = np.moveaxis(parameters.reshape(shape[0], 1, shape[-1], -1), -1, 1)
        constants = np.repeat(tiles, shape[-2], axis=2)
    else:
        constants = rng.integers(-90, 90, shape).astype(np.int32)
    assert workload.addition is not None
    fixed = workload.addition.sum
    given = [fixed.parameters(env)] if fixed.parameter_count else []
    return [x, residual, w, constants, identity_weights(env), *given]


def wanted(workload: Conv2d, env: Environment, inputs: list[Any], seed: int) -> Any:
    """The reference: the convolution as an expression, then the sum in float32."""
    alone = replace(workload, requantize=replace(workload.requantize, then=()))
    args = alone.scheduled(env, Tiling(1, 1, 1, 1, 1))[1]
    given = dict(zip(args, (inputs[0], inputs[2], inputs[3]), strict=False))
    product = te.evaluate(args[3], given).astype(int)
    assert len(np.unique(product)) > 3
    return added(*scales_of(seed, env))[inputs[1].astype(int) + 128, product + 128]


@pytest.mark.parametrize("config", ["tiny", "tiny-extended", "pynq-extended"])
@pytest.mark.parametrize("seed", range(6))
def test_random_ones_give_what_two_operators_give(
    seed: int, config: str, run: Any, some: Callable[..., Any]
) -> None:
    workload, env = random_case(seed, config)
    function = tuned(workload, env, None, "fused")
    inputs = operands(workload, env, function.args, some, seed)
    want = wanted(workload, env, inputs, seed)
    np.testing.assert_array_equal(run(function, inputs, order=f"random:{seed}"), want)


@pytest.mark.parametrize(
    ("seed", "config", "more"),
    [
        (3, "tiny", {}),
        (3, "tiny-extended", {"in_turn": True}),
        (3, "tiny-extended", {"in_turn": True, "result_copies": 4, "added_copies": 2}),
        (5, "tiny-extended", {"in_turn": True}),
    ],
)
def test_no_pass_changes_them_nor_does_the_rtl(
    seed: int,
    config: str,
    more: dict[str, Any],
    interpreted: Any,
    run: Any,
    some: Callable[..., Any],
) -> None:
    workload, env = random_case(seed, config)
    tile = Tiling(1, 2, 2, workload.inputs, workload.kernel[0], ahead=True)
    knobs = replace(tile, **more)
    schedule = workload.scheduled(env, knobs)
    inputs = operands(workload, env, schedule[1], some, seed)
    want = wanted(workload, env, inputs, seed).astype(np.int8)
    interpreted(schedule, inputs, want, env)
    function = tuned(workload, env, knobs, "fused")
    np.testing.assert_array_equal(run(function, inputs, device="rtl"), want)


@pytest.mark.parametrize("seed", range(3))
def test_the_second_product_and_the_sum_are_one_operation(
    seed: int, run: Any, some: Callable[..., Any]
) -> None:
    """Results are the same, with one micro-op fewer per vector."""
    workload, env = random_case(seed, "tiny-extended")
    vectors = workload.batch * workload.outputs * workload.output_height * workload.output_width
    uops = []
    for machine in (env, Environment(replace(env.config, multiply_add=0))):
        scales = scales_of(seed, machine)
        constants = addition_constants(*scales, machine.config, added(*scales))
        requantize = replace(workload.requantize, then=(Addition(constants),))
        workload = replace(workload, requantize=requantize)
        function = tuned(workload, machine, None, "fused")
        assert ("op=MULTIPLY_ADD" in str(function.lowered)) == machine.config.multiply_add
        inputs = operands(workload, machine, function.args, some, seed)
        want = wanted(workload, machine, inputs, seed)
        np.testing.assert_array_equal(run(function, inputs), want)
        uops.append(run.counters["alu_uops"])
        assert uops[-1] == vectors * workload.requantize.operations
    assert uops[0] == uops[1] - vectors


def test_they_take_fewer_cycles_than_two_operators() -> None:
    """All ALU passes overlap with the products of the next tile."""
    workload, env = random_case(1, "tiny-extended")
    workload = replace(workload, inputs=6, outputs=6, height=8, width=8, kernel=(3, 3))
    assert workload.addition is not None
    alone = replace(workload, requantize=replace(workload.requantize, then=()))
    pixels = workload.output_height * workload.output_width
    vectors = workload.batch * workload.outputs * pixels
    parts: list[Any] = [alone, WeightedSum(vectors, workload.addition.sum)]
    two = sum(estimated_cycles(tuned(part, env, None, "part")) for part in parts)
    products = vectors * (workload.products + 1)
    assert estimated_cycles(tuned(workload, env, None, "fused")) < min(1.1 * products, 0.95 * two)
