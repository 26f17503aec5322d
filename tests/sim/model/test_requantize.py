"""The requantization of the model against ONNX Runtime: not one element may differ.

The reference for exactness is QLinearConv and QLinearMatMul on the CPU, without optimizations. A
convolution of one pixel and very many channels gives each channel its own scale and, through its
bias, its own accumulator.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from amaranth_vta.sim.model import scalar
from amaranth_vta.sim.model.arithmetic import requantized
from amaranth_vta.sw.compiler import te
from tests.support.seeds import each_seed

CHANNELS = 40_000
PIXELS = 6
Integers = npt.NDArray[np.int64]
Tensor = npt.NDArray[Any]


def run_in_onnx_runtime(operator: str, inputs: dict[str, npt.ArrayLike]) -> Integers:
    """The output ``y`` of ``operator``; all inputs except ``x`` are constants."""
    x = np.asarray(inputs["x"])
    constants = [
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in inputs.items()
        if name != "x"
    ]
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [helper.make_node(operator, list(inputs), ["y"])],
        "requantization",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, [None] * x.ndim)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(["y"], {"x": x})[0]).astype(np.int64)


def by_the_model(
    acc: Integers, scale: npt.NDArray[np.float32], zero_point: int, dtype: np.dtype[np.generic]
) -> Integers:
    """``acc`` (n, channels) requantized; uint8 results are int8 results plus 128."""
    moved = 128 if dtype == np.uint8 else 0
    # Split the sum into accumulator and bias at random, even beyond int32: their sum wraps around.
    bias: Integers = np.random.default_rng(acc.size).integers(-1 << 31, 1 << 31, (acc.shape[1],))
    rest = (acc - bias + (1 << 31)) % (1 << 32) - (1 << 31)
    parameters = te.requantization_parameters(bias, scale, zero_point - moved, -128, 127)
    least, most = acc.min(axis=0), acc.max(axis=0)
    assert te.requantizes_as_float32(scale, zero_point - moved, -128, 127, least, most).all()
    return requantized(rest.astype(np.int32), *parameters.T).astype(np.int64) + moved


def random_scales(chance: np.random.Generator, count: int) -> npt.NDArray[np.float32]:
    """Random scales from 2^-20 to 1, including powers of two, which make ties."""
    exponents = chance.integers(-20, 1, count)
    fractions = np.where(chance.random(count) < 0.2, 1.0, chance.uniform(1, 2, count))
    return np.ldexp(fractions, exponents).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@each_seed(range(4))
def test_convolutions_with_scales_per_channel_are_equal(seed: int, dtype: type) -> None:
    chance = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    x_zero, y_zero = (int(chance.integers(info.min, info.max + 1)) for _ in range(2))
    if seed == 0:
        y_zero = 0
    x: Tensor = chance.integers(info.min, info.max + 1, (1, 2, PIXELS, 1)).astype(dtype)
    w_dtype = np.dtype(dtype)
    w_zero = 128 if dtype == np.uint8 else 0
    w = chance.integers(info.min, info.max + 1, (CHANNELS, 2, 1, 1)).astype(w_dtype)
    x_scale, y_scale = (random_scales(chance, 1)[0] for _ in range(2))
    wanted = random_scales(chance, CHANNELS)
    w_scale = (wanted.astype(np.float64) * y_scale / x_scale).astype(np.float32)
    scale = np.maximum(x_scale * w_scale / y_scale, np.float32(2.0**-20))
    w_scale = np.where(x_scale * w_scale / y_scale < scale, scale * y_scale / x_scale, w_scale)
    scale = x_scale * w_scale / y_scale
    # Most accumulators give results within the bounds or slightly beyond, the others are arbitrary.
    near = np.clip(chance.uniform(-300, 300, CHANNELS) / scale, -(2.0**23), 2.0**23)
    anything = chance.integers(-1 << 23, 1 << 23, CHANNELS)
    bias = np.where(chance.random(CHANNELS) < 0.8, near, anything).astype(np.int32)
    products = (x.astype(np.int64) - x_zero)[0, :, :, 0].T @ (w.astype(np.int64) - w_zero)[
        :, :, 0, 0
    ].T
    y = run_in_onnx_runtime(
        "QLinearConv",
        {
            "x": x,
            "x_scale": x_scale,
            "x_zero": np.array(x_zero, dtype),
            "w": w,
            "w_scale": w_scale,
            "w_zero": np.full(CHANNELS, w_zero, w_dtype),
            "y_scale": y_scale,
            "y_zero": np.array(y_zero, dtype),
            "bias": bias,
        },
    )
    expected = by_the_model(products + bias, scale, y_zero, np.dtype(dtype))
    assert np.count_nonzero(expected != y[0, :, :, 0].T) == 0
    # Most results must not be saturated.
    assert np.unique(expected).size > 200


@each_seed(range(3))
def test_what_lies_next_to_a_step_is_equal(seed: int) -> None:
    chance = np.random.default_rng(seed)
    acc = chance.integers(1 << 8, 1 << 24, CHANNELS) * chance.choice((-1, 1), CHANNELS)
    steps = chance.integers(-128, 127, CHANNELS) + 0.5
    # A 48-bit product that is a tie once rounded to 24 bits, but may not be one before.
    scale = np.abs(steps / acc).astype(np.float32)
    scale = (scale.view(np.int32) + chance.integers(-1, 2, CHANNELS)).astype(np.int32)
    scale = np.maximum(scale.view(np.float32), np.float32(2.0**-20))
    one, zero = np.float32(1), np.int8(0)
    y = run_in_onnx_runtime(
        "QLinearConv",
        {
            "x": np.zeros((1, 1, 1, 1), np.int8),
            "x_scale": one,
            "x_zero": zero,
            "w": np.ones((CHANNELS, 1, 1, 1), np.int8),
            "w_scale": scale,
            "w_zero": np.zeros(CHANNELS, np.int8),
            "y_scale": one,
            "y_zero": zero,
            "bias": acc.astype(np.int32),
        },
    )
    expected = by_the_model(acc[np.newaxis], scale, 0, np.dtype(np.int8))
    assert np.count_nonzero(expected != y[0, :, :, 0].T) == 0
    rounded_once = np.clip(np.rint(acc * scale.astype(np.float64)), -128, 127)
    assert np.count_nonzero(rounded_once != expected) > 100


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(("inner", "exponent"), [(4, -7), (100, -10), (4096, -13)])
def test_matrix_products_with_one_scale_are_equal(inner: int, exponent: int, dtype: type) -> None:
    chance = np.random.default_rng(inner)
    info = np.iinfo(dtype)
    x: Tensor = chance.integers(info.min, info.max + 1, (500, inner)).astype(dtype)
    w: Tensor = chance.integers(info.min, info.max + 1, (inner, 300)).astype(dtype)
    zero = 128 if dtype == np.uint8 else 0
    x_scale, y_scale = np.float32(0.0173), np.float32(0.251)
    w_scale = np.float32(2.0**exponent * float(y_scale) / float(x_scale))
    y = run_in_onnx_runtime(
        "QLinearMatMul",
        {
            "x": x,
            "x_scale": x_scale,
            "x_zero": np.array(zero, dtype),
            "w": w,
            "w_scale": w_scale,
            "w_zero": np.array(zero, dtype),
            "y_scale": y_scale,
            "y_zero": np.array(zero - 3, dtype),
        },
    )
    acc = np.rint((x.astype(np.float64) - zero) @ (w.astype(np.float64) - zero)).astype(np.int64)
    scale = np.full(300, np.float32(x_scale * w_scale) / y_scale, np.float32)
    expected = by_the_model(acc, scale, zero - 3, np.dtype(dtype))
    assert np.count_nonzero(y != expected) == 0
    assert np.unique(expected).size > 50


@pytest.mark.parametrize("rounds_twice", [False, True])
def test_the_flag_of_two_roundings_does_what_the_definition_says(rounds_twice: bool) -> None:
    chance = np.random.default_rng(5)
    count = 3000
    # Products around 1/2 ± 2^-(e + 1), of sums of both signs; the other flags are arbitrary.
    shift = chance.integers(0, 16, count)
    factor = chance.choice((-1, 1), count) * (1 << chance.integers(0, 12, count))
    end = 1 << 42 - np.maximum(shift + chance.integers(-1, 2, count), 0)
    half = 2 * chance.integers(0, 130, count) + 1 << 42
    scale = (half + chance.choice((-1, 0, 1), count) * end + chance.integers(-1, 2, count)) // abs(
        factor
    )
    flags = chance.integers(0, 8, count) // 6 | chance.integers(0, 2, count) << 1 | shift << 2
    bounds = 128 << 8 | 127 << 16 | flags << 24
    words = np.stack([factor, 0 * factor, scale, scale >> 32, bounds]).astype(np.int32)
    want = [scalar.requantize(*lane, rounds_twice=rounds_twice) for lane in words.T.tolist()]
    np.testing.assert_array_equal(requantized(*words, rounds_twice=rounds_twice), want)
