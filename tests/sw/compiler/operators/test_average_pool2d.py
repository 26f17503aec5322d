"""Average pooling: the results of ONNX Runtime for every sum, with and without REQUANTIZE."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.average_pool2d import (
    AveragePool2d,
    average_pool2d,
)
from amaranth_vta.sw.compiler.operators.building_blocks.exact_constants import (
    average_constants,
    averaged,
)
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import NotExact, Quantized
from amaranth_vta.sw.compiler.operators.building_blocks.identity import identity_weights
from amaranth_vta.sw.compiler.te.requantization import requantization_parameters
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile
from tests.support.seeds import each_seed

CONFIGS = ["tiny", "batch2", "pynq", "block32", "tiny-extended", "pynq-extended"]


def pooled(workload: AveragePool2d, x: npt.NDArray[Any], quantized: Any) -> npt.NDArray[Any]:
    top, left, bottom, right = workload.pads
    around = ((0, 0), (0, 0), (top, bottom), (left, right), (0, 0), (0, 0))
    padded = np.pad(x.astype(np.int64), around)
    windows = sliding_window_view(padded, workload.kernel, axis=(2, 3))
    windows = windows[:, :, :: workload.strides[0], :: workload.strides[1]]
    kernel = workload.kernel[0] * workload.kernel[1]
    return averaged(windows.sum(axis=(6, 7)), *quantized, kernel, -128, 127).astype(np.int8)


def constants_of(workload: AveragePool2d, env: Environment) -> list[npt.NDArray[Any]]:
    """The function's arguments between input and output."""
    identity = [identity_weights(env)] if workload.by_gemm(env) else []
    parameters = workload.constants.parameters(env)
    return [*identity, parameters] if len(parameters) else identity


def random_pool(seed: int, config: Config) -> tuple[AveragePool2d, tuple[Quantized, Quantized]]:
    pick = random.Random(seed)
    kernel = (pick.randint(1, 4), pick.randint(1, 4))
    pads = tuple(pick.randint(0, k - 1) for k in (*kernel, *kernel)) if seed % 2 else (0,) * 4
    x = Quantized(pick.uniform(0.01, 0.1), 0 if any(pads) else pick.randint(-128, 127))
    y = Quantized(x.scale * pick.uniform(0.5, 2), pick.randint(-128, 127))
    if seed % 3 == 0:
        x, y = Quantized(0.25, x.zero_point), Quantized(0.25, y.zero_point)
    workload = AveragePool2d(
        batch=pick.randint(1, 2),
        channels=pick.randint(1, 4),
        height=pick.randint(4, 12),
        width=pick.randint(4, 9),
        kernel=kernel,
        constants=average_constants(x, y, kernel[0] * kernel[1], config),
        strides=(pick.randint(1, 3), pick.randint(1, 3)),
        pads=pads,  # type: ignore[arg-type]
    )
    return workload, (x, y)


@pytest.mark.parametrize("config", CONFIGS)
@each_seed(range(6))
def test_average_pooling_is_exact(
    config: str, seed: int, run: Any, some: Callable[..., Any]
) -> None:
    env = Environment(PRESETS[config])
    workload, quantized = random_pool(seed * 6 + CONFIGS.index(config), env.config)
    function = average_pool2d(workload, env)
    x = some(np.random.default_rng(seed), function.args[0])
    got = run(function, [x, *constants_of(workload, env)], order=f"random:{seed}")
    np.testing.assert_array_equal(got, pooled(workload, x, quantized))


@pytest.mark.parametrize("config", CONFIGS)
def test_an_image_larger_than_the_accumulators_is_averaged_in_parts(
    config: str, run: Any, some: Callable[..., Any]
) -> None:
    env = Environment(PRESETS[config])
    x = Quantized(0.0213, 5)
    y = Quantized(0.0137 if env.config.requantize else x.scale, -20)
    size = (17, 19) if config.startswith("tiny") else (7, 7)
    constants = average_constants(x, y, size[0] * size[1], env.config)
    workload = AveragePool2d(1, 3, *size, size, constants)
    function = average_pool2d(workload, env)
    image = some(np.random.default_rng(0), function.args[0])
    # Makes averages vary widely instead of being near 0.
    image = np.clip(
        image.astype(int) // 4 + 40 * np.arange(-1, 2).reshape(3, 1, 1, 1, 1), -128, 127
    )
    got = run(function, [image.astype(np.int8), *constants_of(workload, env)])
    np.testing.assert_array_equal(got, pooled(workload, image, (x, y)))


@pytest.mark.parametrize("config", ["tiny", "tiny-extended"])
@each_seed([1, 6])
def test_no_pass_changes_what_an_average_pooling_does(
    config: str, seed: int, interpreted: Any, run: Any, some: Callable[..., Any]
) -> None:
    env = Environment(PRESETS[config])
    workload, quantized = random_pool(seed, env.config)
    knobs = OutputTile((1, 2, 3, 2, 1))
    schedule = workload.scheduled(env, knobs)
    x = some(np.random.default_rng(0), schedule[1][0])
    inputs = [x, *constants_of(workload, env)]
    want = pooled(workload, x, quantized)
    interpreted(schedule, inputs, want, env)
    function = average_pool2d(workload, env, knobs)
    np.testing.assert_array_equal(run(function, inputs, device="rtl"), want)


def test_results_with_parameters_of_their_own(
    interpreted: Any, run: Any, some: Callable[..., Any]
) -> None:
    """Parameters per result, as averages need whose border windows count fewer pixels."""
    env = Environment(PRESETS["tiny-extended"])
    x, y = Quantized(0.0213, 5), Quantized(0.0137, -20)
    known = [average_constants(x, y, count, env.config) for count in (9, 6, 4)]
    counts = np.full((4, 6), 9)
    counts[[0, -1]], counts[:, [0, -1]] = 6, 6
    counts[::3, ::5] = 4
    pads = (1, 1, 1, 1)
    zero = x.zero_point
    workload = AveragePool2d(
        2, 3, 4, 6, (3, 3), known[0], pads=pads, pad_value=zero, by_result=True
    )
    # All sums cover 9 pixels; padding contributes the zero point, too.
    bias = -9 * zero
    parameters = np.stack(
        [
            requantization_parameters([bias], item.scale or 0, y.zero_point, -128, 127)[0]
            for item in known
        ]
    )[np.select([counts == 9, counts == 6], [0, 1], 2)]
    tiles = np.broadcast_to(
        parameters[..., None, None], (4, 6, 4, env.BATCH, env.BLOCK_OUT)
    ).astype(env.acc_dtype)
    schedule = workload.scheduled(env, OutputTile((2, 2, 3, 3, 3)))
    image = some(np.random.default_rng(0), schedule[1][0])
    around = ((0, 0), (0, 0), (1, 1), (1, 1), (0, 0), (0, 0))
    padded = np.pad(image.astype(np.int64), around, constant_values=zero)
    sums = sliding_window_view(padded, (3, 3), axis=(2, 3)).sum(axis=(6, 7)) - 9 * zero
    wide = counts[:, :, None, None]
    want = np.select(
        [wide == count for count in (9, 6, 4)],
        [averaged(sums + count * zero, x, y, count, -128, 127) for count in (9, 6, 4)],
    ).astype(np.int8)
    inputs = [image, identity_weights(env), tiles]
    interpreted(schedule, inputs, want, env)
    np.testing.assert_array_equal(run(average_pool2d(workload, env), inputs, device="rtl"), want)


def test_averages_that_cannot_be_exact_are_refused_with_a_sentence() -> None:
    step = Quantized(0.1)
    with pytest.raises(NotExact, match=r"sums of 100,000 pixels have too many values"):
        average_constants(step, step, 100_000, PRESETS["pynq"])
    with pytest.raises(NotExact, match="stores 4 bits, not 8"):
        average_constants(step, step, 4, PRESETS["int4"])
