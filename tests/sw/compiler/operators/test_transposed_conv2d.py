"""Transposed convolutions against their definition: each input is spread by the kernel."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import (
    PerChannelScale,
    RoundingShift,
)
from amaranth_vta.sw.compiler.operators.transposed_conv2d import (
    TransposedConv2d,
    transposed_conv2d,
)
from amaranth_vta.sw.compiler.tuner.tiled_product import Tiling
from amaranth_vta.sw.compiler.tuner.workload import choose
from tests.support.seeds import each_seed

Array = npt.NDArray[Any]
CONFIGS = ["tiny", "batch2", "int4", "pynq", "block32", "tiny-extended", "pynq-extended"]


def random_workload(seed: int, config: Config, size: int = 6) -> TransposedConv2d:
    pick = random.Random(seed)
    kernel = (pick.randint(1, 5), pick.randint(1, 4))
    strides = (pick.randint(1, 3), pick.randint(1, 3))
    high = (1 << config.out_width - 1) - 1
    rescale = config.requantize and seed % 2 == 0
    return TransposedConv2d(
        batch=pick.randint(1, 2),
        inputs=pick.randint(1, 2),
        outputs=pick.randint(1, 2),
        height=pick.randint(2, size),
        width=pick.randint(2, size),
        kernel=kernel,
        requantize=PerChannelScale()
        if rescale
        else RoundingShift(pick.randint(0, 5), -high - 1, high),
        strides=strides,
        pads=tuple(pick.randint(0, k // 2) for k in (*kernel, *kernel)),  # type: ignore[arg-type]
        output_padding=(pick.randrange(strides[0]), pick.randrange(strides[1])),
    )


def spread(workload: TransposedConv2d, x: Array, w: Array) -> Array:
    """The reference sums, with operands and result in tiles: every input adds the kernel times
    itself.
    """
    (batch, _, height, width, rows, _), stride = x.shape, workload.strides
    kernel, extra = workload.kernel, workload.output_padding
    full = [
        (size - 1) * s + k + e
        for size, s, k, e in zip((height, width), stride, kernel, extra, strict=True)
    ]
    total = np.zeros((batch, len(w), *full, rows, w.shape[4]), np.int64)
    for i in range(height):
        for j in range(width):
            added = np.einsum("ncbi,ocyxki->noyxbk", x[:, :, i, j].astype(int), w.astype(int))
            top, left = i * stride[0], j * stride[1]
            total[:, :, top : top + kernel[0], left : left + kernel[1]] += added
    top, left, bottom, right = workload.pads
    return total[:, :, top : full[0] - bottom, left : full[1] - right]


def arguments(workload: TransposedConv2d, args: Any, some: Any, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    x, w = (np.clip(some(rng, arg), -16, 16) for arg in args[:2])
    constants = args[2]
    if isinstance(workload.requantize, RoundingShift):
        bias = rng.integers(-90, 90, constants.shape) + workload.requantize.half
        return [x, w, bias.astype(constants.dtype)]
    channels = (workload.outputs, *workload.strides, 1, constants.shape[-1])
    bias, scale = rng.integers(-90, 90, channels), rng.uniform(0.005, 0.1, channels)
    parameters = te.requantization_parameters(bias.reshape(-1), scale.reshape(-1), 3, -128, 120)
    parameters = np.moveaxis(parameters.reshape(*channels, -1), -1, 3)
    return [x, w, np.repeat(parameters, constants.shape[-2], axis=4)]


def wanted(workload: TransposedConv2d, inputs: list[Array], dtype: str) -> Array:
    total, (down, right) = spread(workload, *inputs[:2]), workload.strides
    rows, columns = (
        np.arange(size) % s for size, s in zip(total.shape[2:4], (down, right), strict=True)
    )
    constants = inputs[2][:, rows][:, :, columns]
    if isinstance(workload.requantize, RoundingShift):
        result = workload.requantize.evaluate(total + constants - workload.requantize.half)
    else:
        result = te.requantized(total.astype(np.int32), *np.moveaxis(constants, 3, 0))
    return result.astype("int8" if dtype == "int4" else dtype)


@pytest.mark.parametrize("config", CONFIGS)
@each_seed(range(8), daily=3)
def test_transposed_convolutions_are_exact_with_default_knobs(
    config: str, seed: int, run: Any, some: Callable[..., Any]
) -> None:
    env = Environment(PRESETS[config])
    workload = random_workload(seed * 7 + CONFIGS.index(config), env.config)
    function = transposed_conv2d(workload, env)
    inputs = arguments(workload, function.args, some, seed)
    got = run(function, inputs, order=f"random:{seed}")
    np.testing.assert_array_equal(got, wanted(workload, inputs, function.args[-1].dtype))


@pytest.mark.parametrize(
    "knobs",
    [
        Tiling(1, 1),
        Tiling(1, 3, 2, 2, 1, ahead=True, image_copies=4),
        Tiling(2, 2, 4, 1, 2, in_turn=True),
        Tiling(1, 2, 4, 2, 3, weights_outside=False, ahead=True),
        Tiling(2, 2, 9, 2, 3, ahead=True, in_turn=True, result_copies=4),
    ],
)
@pytest.mark.parametrize("config", ["pynq", "pynq-extended"])
def test_transposed_convolutions_are_exact_however_they_are_cut(
    config: str, knobs: Tiling, run: Any, some: Callable[..., Any]
) -> None:
    env = Environment(PRESETS[config])
    workload = TransposedConv2d(
        2, 2, 2, 5, 4, (5, 3), RoundingShift(4, -128, 127), (2, 3), (1, 0, 2, 1), (1, 2)
    )
    function = transposed_conv2d(workload, env, knobs)
    inputs = arguments(workload, function.args, some, 1)
    got = run(function, inputs, order="last:load")
    np.testing.assert_array_equal(got, wanted(workload, inputs, function.args[-1].dtype))


@pytest.mark.parametrize("config", ["tiny", "tiny-extended"])
@each_seed([4, 7])
def test_no_pass_changes_what_a_transposed_convolution_does(
    config: str, seed: int, interpreted: Any, run: Any, some: Callable[..., Any]
) -> None:
    env = Environment(PRESETS[config])
    workload = random_workload(seed, env.config, size=3)
    knobs = Tiling(1, 2, 2, 1, 2, ahead=True)
    schedule = workload.scheduled(env, knobs)
    inputs = arguments(workload, schedule[1], some, seed)
    want = wanted(workload, inputs, env.out_dtype)
    interpreted(schedule, inputs, want, env)
    function = transposed_conv2d(workload, env)
    np.testing.assert_array_equal(run(function, inputs, device="rtl"), want)


def test_nothing_is_multiplied_by_inserted_zeros(run: Any, some: Callable[..., Any]) -> None:
    env = Environment(PRESETS["pynq"])
    workload = TransposedConv2d(
        1, 2, 1, 6, 5, (3, 3), RoundingShift(4, -128, 127), (2, 2), (1, 1, 1, 1), (1, 1)
    )
    function = transposed_conv2d(workload, env)
    inputs = arguments(workload, function.args, some, 0)
    run(function, inputs)
    # Of the 2 × 2 phases, one has four taps, two have two, and one has one.
    assert run.counters["gemm_uops"] == 6 * 5 * 2 * 9


def test_each_phase_begins_by_overwriting(run: Any, some: Callable[..., Any]) -> None:
    env = Environment(PRESETS["pynq-extended"])
    workload = TransposedConv2d(
        1, 2, 1, 6, 5, (3, 3), PerChannelScale(), (2, 2), (1, 1, 1, 1), (1, 1)
    )
    knobs = Tiling(1, 6, 5, 2, 2)
    text = transposed_conv2d(workload, env, knobs).lowered.instructions()
    assert "GEMM reset" not in text
    assert " MULTIPLY " in text
    # Each phase has its own parameters, loaded once per phase and not for every vector.
    assert text.count("ALU REQUANTIZE") == 4
    # If a stride exceeds the kernel, some phases have no taps and are reset.
    wide = replace(workload, strides=(4, 2))
    function = transposed_conv2d(wide, env)
    assert "GEMM reset" in function.lowered.instructions()
    inputs = arguments(wide, function.args, some, 0)
    want = wanted(wide, inputs, "int8")
    np.testing.assert_array_equal(run(function, inputs), want)


@pytest.mark.parametrize("name", list(PRESETS))
def test_whatever_default_knobs_are_first_fit(name: str) -> None:
    config = PRESETS[name]
    workload = TransposedConv2d(
        1, 4, 4, 14, 14, (4, 4), RoundingShift(6, -8, 7), (2, 2), (1, 1, 1, 1)
    )
    knobs = choose(workload, config).best
    assert transposed_conv2d(workload, Environment(config), knobs).outputs == [3]
