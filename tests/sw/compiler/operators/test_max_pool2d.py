"""Max pooling, with inputs copied by GEMM or loaded into accumulators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.identity import (
    identity_weights,
    reads_what_it_stores,
)
from amaranth_vta.sw.compiler.operators.max_pool2d import MaxPool2d, max_pool2d
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile


@pytest.mark.parametrize("config", ["tiny", "tiny-extended", "batch2"])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 1), (3, 2), (3, 3)])
@pytest.mark.parametrize("in_turn", [False, True])
def test_no_pass_changes_what_a_max_pooling_does(
    config: str,
    kernel: tuple[int, int],
    in_turn: bool,
    interpreted: Any,
    run: Any,
    some: Callable[..., Any],
) -> None:
    env = Environment(PRESETS[config])
    workload = MaxPool2d(1, 2, 5, 4, kernel, (2, 1), (0, kernel[1] - 1, kernel[0] - 1, 0))
    knobs = OutputTile((1, 2, 3), in_turn)
    schedule = workload.scheduled(env, knobs)
    x = some(np.random.default_rng(0), schedule[1][0])
    top, left, bottom, right = workload.pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right), (0, 0), (0, 0)))
    windows = sliding_window_view(padded, kernel, axis=(2, 3))[:, :, ::2]
    want = windows.max(axis=(6, 7))
    inputs = [x, identity_weights(env)] if reads_what_it_stores(env) else [x]
    interpreted(schedule, inputs, want, env)
    function = max_pool2d(workload, env, knobs)
    device = "functional" if config == "batch2" else "rtl"
    np.testing.assert_array_equal(run(function, inputs, device=device), want)


@pytest.mark.parametrize("config", ["tiny", "tiny-extended"])
def test_windows_may_be_dilated(
    config: str, interpreted: Any, run: Any, some: Callable[..., Any]
) -> None:
    env = Environment(PRESETS[config])
    workload = MaxPool2d(1, 2, 9, 7, (3, 2), (2, 1), (1, 0, 1, 2), dilations=(2, 3))
    schedule = workload.scheduled(env, OutputTile((1, 2, 3), True))
    x = some(np.random.default_rng(0), schedule[1][0])
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 2), (0, 0), (0, 0)))
    windows = sliding_window_view(padded, (5, 4), axis=(2, 3))[:, :, ::2]
    want = windows[..., ::2, ::3].max(axis=(6, 7))
    inputs = [x, identity_weights(env)] if reads_what_it_stores(env) else [x]
    interpreted(schedule, inputs, want, env)
    np.testing.assert_array_equal(run(max_pool2d(workload, env), inputs), want)


@pytest.mark.parametrize(
    ("kernel", "strides", "comparisons", "moves"),
    [
        # One comparison less than pixels; the first one is moved once more.
        ((2, 2), (2, 2), 64 * 3, 256 + 64),
        # 16 rows of 14 results along columns by two comparisons each, 14 rows of them by three.
        ((3, 3), (1, 1), 16 * 14 * 2 + 14 * 14 * 3, 16 * 15 + 16 * 14 + 14 * 14),
    ],
)
def test_a_pooling_takes_few_comparisons(
    kernel: tuple[int, int],
    strides: tuple[int, int],
    comparisons: int,
    moves: int,
    run: Any,
    some: Callable[..., Any],
) -> None:
    env = Environment(PRESETS["pynq-extended"])
    workload = MaxPool2d(1, 1, 16, 16, kernel, strides)
    knobs = OutputTile((1, workload.output_height, workload.output_width), True)
    function = max_pool2d(workload, env, knobs)
    x = some(np.random.default_rng(0), function.args[0])
    run(function, [x, identity_weights(env)])
    assert run.counters["alu_uops"] == comparisons
    assert run.counters["gemm_uops"] == moves
