"""Pointwise operators: element-wise operators, and standalone requantization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.exact_constants import (
    byte_constants,
    rescaled_bytes,
    wide_constants,
)
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import NotExact, Quantized
from amaranth_vta.sw.compiler.operators.elementwise import Elementwise, elementwise
from amaranth_vta.sw.compiler.operators.weighted_sum import WeightedSum, weighted_sum
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile
from amaranth_vta.sw.compiler.tuner.workload import NoScheduleFits, choose

CONFIGS = ["tiny", "batch2", "int4", "pynq", "block32", "tiny-extended", "pynq-extended"]
WORKLOADS = [
    Elementwise(301, "add", low=-8, high=7),
    Elementwise(77, "multiply", low=-8, high=7, wide=(False, True)),
    Elementwise(77, "minimum"),
    Elementwise(5, "maximum", wide=(True, True)),
    Elementwise(77, "shift", constant=3),
    Elementwise(40, "shift", constant=-2, wide=(True,)),
    Elementwise(40, "shift", high=7, wide=(True, False)),
    Elementwise(130, "add", constant=-3, low=-8),
    Elementwise(130, "multiply", constant=-3, wide=(True,)),
    Elementwise(130, None, low=0, high=6),
    Elementwise(3, None),
]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: f"{w.operation}-{w.constant}")
def test_element_wise_operators_are_those_of_numpy(
    config: str, workload: Elementwise, run: Any, some: Callable[..., Any]
) -> None:
    env = Environment(PRESETS[config])
    function = elementwise(workload, env)
    rng = np.random.default_rng(workload.vectors)
    inputs = [some(rng, arg) for arg in function.args[:-1]]
    want = workload.evaluate(inputs, env)
    assert len(np.unique(want)) > 1
    np.testing.assert_array_equal(run(function, inputs, order="random:2"), want)


@pytest.mark.parametrize("config", ["tiny", "tiny-extended"])
@pytest.mark.parametrize("workload", WORKLOADS[::3], ids=lambda w: f"{w.operation}-{w.constant}")
def test_no_pass_changes_what_an_element_wise_operator_does(
    config: str, workload: Elementwise, interpreted: Any, run: Any, some: Callable[..., Any]
) -> None:
    env = Environment(PRESETS[config])
    workload = Elementwise(**{**vars(workload), "vectors": 7})
    knobs = OutputTile((3,), in_turn=workload.low is not None)
    schedule = workload.scheduled(env, knobs)
    inputs = [some(np.random.default_rng(0), arg) for arg in schedule[1][:-1]]
    want = workload.evaluate(inputs, env)
    interpreted(schedule, inputs, want, env)
    got = run(elementwise(workload, env, knobs), inputs, device="rtl")
    np.testing.assert_array_equal(got, want)


def test_a_constant_that_no_instruction_holds_is_refused() -> None:
    with pytest.raises(NoScheduleFits, match="an immediate is within -32768 to 32767"):
        elementwise(Elementwise(3, "add", constant=1 << 15), Environment(PRESETS["tiny"]))


@pytest.mark.parametrize("config", [name for name in CONFIGS if name != "int4"])
@pytest.mark.parametrize(
    ("x", "y"),
    [
        (Quantized(0.0217, -3), Quantized(0.0181, 11)),
        (Quantized(0.0217, -128), Quantized(0.0633, -128)),
        (Quantized(0.5, 1), Quantized(1.0, 3)),
    ],
)
def test_bytes_get_another_scale_and_zero_point(
    config: str, x: Quantized, y: Quantized, run: Any
) -> None:
    env = Environment(PRESETS[config])
    constants = byte_constants(x, y, env.config, -100, 127)
    tile = env.BATCH * env.BLOCK_OUT
    workload = WeightedSum(512 // tile, constants)
    function = weighted_sum(workload, env)
    values = np.tile(np.arange(-128, 128), 2).astype(np.int8).reshape(function.args[0].shape)
    parameters = [constants.parameters(env)] if constants.parameter_count else []
    got = run(function, [values, *parameters])
    want = rescaled_bytes(x, y, -100, 127)
    np.testing.assert_array_equal(got.reshape(2, 256), np.stack([want, want]))


@pytest.mark.parametrize("config", ["tiny", "pynq", "tiny-extended", "pynq-extended"])
def test_accumulators_become_bytes(config: str, run: Any) -> None:
    env = Environment(PRESETS[config])
    scale = 0.0137 if env.config.requantize else 2.0**-6
    constants = wide_constants(scale, -5, env.config, -128, 100)
    function = weighted_sum(WeightedSum(200, constants, wide=True), env)
    rng = np.random.default_rng(0)
    values = rng.integers(-12000, 12000, function.args[0].shape).astype(np.int32)
    parameters = [constants.parameters(env)] if constants.parameter_count else []
    got = run(function, [values, *parameters])
    bias, factor, *bounds = te.requantization_parameters([0], scale, -5, -128, 100)[0]
    np.testing.assert_array_equal(got, te.requantized(values, bias, factor, *bounds))


def test_scales_that_shifts_do_not_have_are_refused() -> None:
    with pytest.raises(NotExact, match=r"scales by 2\^-n, n from 0 to 16, not 0\.3"):
        wide_constants(0.3, 0, PRESETS["pynq"])
    with pytest.raises(NotExact, match="stores 4 bits"):
        byte_constants(Quantized(1.0), Quantized(1.0), PRESETS["int4"])


@pytest.mark.parametrize("name", list(PRESETS))
def test_whatever_default_knobs_are_first_fit(name: str) -> None:
    config = PRESETS[name]
    workload = Elementwise(5000, "add", low=-8, high=7, wide=(True, False))
    knobs = choose(workload, config).best
    assert elementwise(workload, Environment(config), knobs).outputs == [2]
