"""The library's operators: the machine stores what NumPy computes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import BuildError, Function, build
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import (
    PerChannelScale,
    RoundingShift,
)
from amaranth_vta.sw.compiler.operators.building_blocks.identity import identity_weights
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d, conv2d
from amaranth_vta.sw.compiler.operators.dense import Dense, dense
from amaranth_vta.sw.compiler.operators.max_pool2d import MaxPool2d, max_pool2d
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile
from amaranth_vta.sw.compiler.tuner.tiled_product import Tiling
from amaranth_vta.sw.compiler.tuner.tiles import even_tiles
from amaranth_vta.sw.compiler.tuner.workload import NoScheduleFits, Workload, choose
from amaranth_vta.sw.runtime.runtime import Runtime
from amaranth_vta.sw.runtime.scalars import pack, unpack
from tests.support.seeds import each_seed

Array = npt.NDArray[Any]
CONFIGS = ["tiny", "batch2", "int4", "pynq"]


def values(rng: np.random.Generator, shape: Sequence[int], dtype: str, limit: int) -> Array:
    bits = int(dtype.removeprefix("int"))
    low, high = max(-limit, -(1 << bits - 1)), min(limit, (1 << bits - 1) - 1)
    return rng.integers(low, high + 1, shape).astype("int8" if bits == 4 else dtype)


def run(function: Function, arrays: Sequence[Array], order: str) -> Array:
    """Run the function; return the output after asserting that there was no race."""
    device = FunctionalDevice(
        function.config,
        1 << 22,
        order,
        report_uninitialized=True,
        report_races=True,
        report_false_claims=True,
    )
    runtime = Runtime(device)
    buffers = [runtime.allocate(function.nbytes(i), a.name) for i, a in enumerate(function.args)]
    for buffer, array, arg in zip(buffers, arrays, function.args, strict=False):
        buffer.write(pack(array, arg.dtype))
    function.run_on(runtime, *buffers)
    runtime.synchronize()
    assert not device.races, device.races[0]
    assert not device.false_claims, device.false_claims[0]
    assert not device.uninitialized_reads, device.uninitialized_reads[0]
    output = function.args[-1]
    data = buffers[-1].read(np.uint8, function.nbytes(len(buffers) - 1))
    return unpack(data, output.dtype).reshape(output.shape)


def accumulated(total: Array, bias: Array, requantize: RoundingShift, config: Config) -> Array:
    """The reference for bias, division by a power of two, and clipping, in float64."""
    assert np.abs(total).max(initial=0) + np.abs(bias).max() < 1 << config.acc_width - 1
    rounded = np.rint((total + bias - requantize.half) / 2.0**requantize.shift)
    return np.clip(rounded, requantize.low, requantize.high).astype(np.int64)


def biases(rng: np.random.Generator, outputs: int, config: Config, half: int) -> Array:
    """A bias per channel, plus ``half``, the same in all rows of a tile."""
    one_row = rng.integers(-500, 500, (outputs, 1, config.block_out)) + half
    return np.repeat(one_row, config.batch, axis=1).astype(f"int{config.acc_width}")


def random_requantize(pick: random.Random, config: Config) -> RoundingShift:
    high = (1 << min(config.out_width, 8) - 1) - 1
    return RoundingShift(
        pick.randint(0, 9), pick.choice([-high - 1, 0, -3]), pick.choice([high, 5])
    )


def convolved(workload: Conv2d, x: Array, w: Array) -> Array:
    """The sums, from and in tiles."""
    top, left, bottom, right = workload.pads
    padded = np.pad(
        x.astype(np.int64), ((0, 0), (0, 0), (top, bottom), (left, right), (0, 0), (0, 0))
    )
    reach = [(k - 1) * d + 1 for k, d in zip(workload.kernel, workload.dilations, strict=True)]
    windows = sliding_window_view(padded, reach, axis=(2, 3))
    windows = windows[:, :, :: workload.strides[0], :: workload.strides[1]]
    windows = windows[..., :: workload.dilations[0], :: workload.dilations[1]]
    return np.einsum("nchwbiyx,ocyxki->nohwbk", windows, w.astype(np.int64))


def check_conv2d(
    workload: Conv2d, config: Config, knobs: Tiling | None, seed: int, order: str = "reverse"
) -> None:
    function = conv2d(workload, Environment(config), knobs)
    assert isinstance(workload.requantize, RoundingShift)
    rng = np.random.default_rng(seed)
    x = values(rng, function.args[0].shape, function.args[0].dtype, 8)
    w = values(rng, function.args[1].shape, function.args[1].dtype, 8)
    bias = biases(rng, workload.outputs, config, workload.requantize.half)
    got = run(function, [x, w, bias], order)
    total = convolved(workload, x, w)
    want = accumulated(
        total, bias[None, :, None, None].astype(np.int64), workload.requantize, config
    )
    np.testing.assert_array_equal(got, want)


def random_conv2d(seed: int, config: Config) -> Conv2d:
    pick = random.Random(seed)
    kernel = (pick.randint(1, 5), pick.randint(1, 5))
    dilations = (pick.choice([1, 1, 2]), pick.choice([1, 1, 3]))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    return Conv2d(
        batch=pick.randint(1, 2),
        inputs=pick.randint(1, 4),
        outputs=pick.randint(1, 3),
        height=pick.randint(reach[0], 13),
        width=pick.randint(reach[1], 13),
        kernel=kernel,
        requantize=random_requantize(pick, config),
        strides=(pick.randint(1, 3), pick.randint(1, 3)),
        dilations=dilations,
        pads=(pick.randint(0, 3), pick.randint(0, 3), pick.randint(0, 3), pick.randint(0, 3)),
    )


@pytest.mark.parametrize("config", CONFIGS)
@each_seed(range(10), daily=4)
def test_convolutions_are_exact_with_default_knobs(config: str, seed: int) -> None:
    machine = PRESETS[config]
    check_conv2d(random_conv2d(seed * 4 + CONFIGS.index(config), machine), machine, None, seed)


def rescaling(rng: np.random.Generator, outputs: int, config: Config) -> Array:
    """Parameters that spread results over their range, the same in all rows of a tile."""
    channels = outputs * config.block_out
    scale = rng.uniform(0.001, 0.2, channels).astype(np.float32)
    parameters = te.requantization_parameters(
        rng.integers(-500, 500, channels), scale, int(rng.integers(-5, 5)), -128, 120
    )
    tiles = parameters.reshape(outputs, 1, config.block_out, -1).transpose(0, 3, 1, 2)
    return np.repeat(tiles, config.batch, axis=2)


def check_rescaled(
    workload: Conv2d, config: Config, knobs: Tiling | None, seed: int, order: str
) -> str:
    """Returns the instructions, as text."""
    function = conv2d(workload, Environment(config), knobs)
    rng = np.random.default_rng(seed)
    x = values(rng, function.args[0].shape, function.args[0].dtype, 8)
    w = values(rng, function.args[1].shape, function.args[1].dtype, 8)
    parameters = rescaling(rng, workload.outputs, config)
    got = run(function, [x, w, parameters], order)
    total = convolved(workload, x, w).astype(np.int32)
    of_channel = (parameters[None, :, number, None, None] for number in range(parameters.shape[1]))
    np.testing.assert_array_equal(got, te.requantized(total, *of_channel))
    return function.lowered.instructions()


@each_seed(range(12), daily=4)
def test_convolutions_with_any_scales_are_exact(seed: int) -> None:
    config = PRESETS["tiny-extended"]
    workload = replace(random_conv2d(seed, config), requantize=PerChannelScale())
    check_rescaled(workload, config, None, seed, f"random:{seed}")


@pytest.mark.parametrize("order", ["program", "reverse", "last:load", "last:compute", "last:store"])
def test_accumulators_in_turn_let_requantization_overlap_gemm(order: str) -> None:
    workload = Conv2d(1, 2, 3, 6, 5, (3, 3), PerChannelScale(), pads=(1, 1, 1, 1))
    knobs = Tiling(1, 2, 5, 2, 3, in_turn=True, ahead=False)
    text = check_rescaled(workload, PRESETS["tiny-extended"], knobs, 1, order)
    operations = [line[17:].split()[0] for line in text.splitlines() if "compute" in line]
    # Nothing is reset, and each tile starts while its predecessor is requantized.
    assert operations.count("MULTIPLY") == operations.count("ALU") == 9
    assert not [line for line in text.splitlines() if "GEMM reset" in line]
    assert all("independent" in line for line in text.splitlines() if " MULTIPLY " in line)


def test_rows_that_no_output_reads_are_not_loaded() -> None:
    config = PRESETS["tiny-extended"]
    workload = Conv2d(1, 2, 2, 6, 6, (1, 1), PerChannelScale(), strides=(2, 2))
    text = check_rescaled(workload, config, Tiling(2, 3, 3, 2, 1), 1, "reverse")
    # Three of six rows, for two tiles of channels; the last column is not loaded either.
    assert "LOAD INP[0:30], memory 6 x 5 from 0 stride 12" in text


CONV = Conv2d(2, 3, 3, 9, 7, (3, 2), RoundingShift(5, -128, 127), pads=(1, 0, 1, 2))


@pytest.mark.parametrize(
    "knobs",
    [
        Tiling(outputs=1, rows=1, columns=1, inputs=1, kernel_rows=1),
        Tiling(outputs=2, rows=4, columns=3, inputs=2, kernel_rows=2),
        Tiling(outputs=3, rows=2, columns=8, inputs=3, kernel_rows=3),
        Tiling(outputs=2, rows=5, columns=5, inputs=3, kernel_rows=3, weights_outside=False),
        Tiling(outputs=1, rows=9, columns=8, inputs=3, kernel_rows=1),
        Tiling(outputs=2, rows=3, columns=4, inputs=2, kernel_rows=1, ahead=True),
        Tiling(1, 5, 8, 3, 3, weights_outside=False, ahead=True),
    ],
)
def test_convolutions_are_exact_however_they_are_cut(knobs: Tiling) -> None:
    check_conv2d(CONV, PRESETS["pynq"], knobs, 1, "last:load")


def test_a_kernel_larger_than_the_weight_scratchpad_is_loaded_by_rows() -> None:
    workload = Conv2d(1, 1, 1, 11, 11, (11, 11), RoundingShift(4, -128, 127), pads=(5, 5, 5, 5))
    config = PRESETS["tiny"]
    assert workload.kernel[0] * workload.kernel[1] > config.wgt.depth
    check_conv2d(workload, config, None, 2)


def test_sixteen_bit_accumulators_round_as_wide_ones_do() -> None:
    config = replace(PRESETS["tiny"], log_acc_width=4, log_acc_buff_size=10)
    check_conv2d(replace(CONV, batch=1, inputs=1, outputs=2), config, None, 3)


@pytest.mark.parametrize("config", CONFIGS)
@each_seed(range(5))
def test_matrix_products_are_exact(config: str, seed: int) -> None:
    machine, pick = PRESETS[config], random.Random(seed)
    workload = Dense(
        pick.randint(1, 3),
        pick.randint(1, 40),
        pick.randint(1, 9),
        random_requantize(pick, machine),
    )
    assert isinstance(workload.requantize, RoundingShift)
    knobs = Tiling(2, 2, inputs=3, ahead=config == "tiny") if seed == 0 else None
    function = dense(workload, Environment(machine), knobs)
    rng = np.random.default_rng(seed)
    x = values(rng, function.args[0].shape, function.args[0].dtype, 8)
    w = values(rng, function.args[1].shape, function.args[1].dtype, 8)
    bias = biases(rng, workload.outputs, machine, workload.requantize.half)
    total = np.einsum("ncbi,ocki->nobk", x.astype(np.int64), w.astype(np.int64))
    want = accumulated(total, bias[None].astype(np.int64), workload.requantize, machine)
    np.testing.assert_array_equal(run(function, [x, w, bias], "reverse"), want)


@pytest.mark.parametrize("groups", [1, 3])
@each_seed(range(3))
def test_products_with_weights_of_4_bits_are_exact(seed: int, groups: int) -> None:
    config, pick = PRESETS["tiny-extended"], random.Random(seed)
    convolution = replace(
        random_conv2d(seed, config), requantize=PerChannelScale(), int4_weights=True
    )
    text = check_rescaled(convolution, config, None, seed, f"random:{seed}")
    assert "LOAD WGT_4BIT" in text
    sizes = pick.randint(1, 3), pick.randint(1, 40), pick.randint(1, 9)
    check_dense(Dense(*sizes, PerChannelScale(), groups=groups, int4_weights=True), config, seed)


def test_weights_of_4_bits_need_the_extension() -> None:
    config = replace(PRESETS["tiny-extended"], wgt_4bit=0)
    workload = Dense(1, 2, 2, PerChannelScale(), int4_weights=True)
    with pytest.raises(NoScheduleFits, match="w is int4; a machine without the extension WGT_4BIT"):
        dense(workload, Environment(config))


@pytest.mark.parametrize("groups", [1, 3])
@each_seed(range(5))
def test_matrix_products_with_any_scales_are_exact(seed: int, groups: int) -> None:
    config, pick = PRESETS["tiny-extended"], random.Random(seed)
    sizes = pick.randint(1, 3), pick.randint(1, 40), pick.randint(1, 9)
    check_dense(Dense(*sizes, PerChannelScale(), groups=groups), config, seed)


def check_dense(workload: Dense, config: Config, seed: int) -> None:
    function = dense(workload, Environment(config))
    rng = np.random.default_rng(seed)
    x = values(rng, function.args[0].shape, function.args[0].dtype, 8)
    w = values(rng, function.args[1].shape, function.args[1].dtype, 8)
    parameters = rescaling(rng, workload.groups * workload.outputs, config)
    parameters = parameters.reshape(function.args[2].shape)
    total = np.einsum("...ncbi,...ocki->...nobk", x.astype(np.int64), w.astype(np.int64))
    of_channel = np.moveaxis(np.expand_dims(parameters, -5), -3, 0)
    want = te.requantized(total.astype(np.int32), *of_channel)
    np.testing.assert_array_equal(run(function, [x, w, parameters], "reverse"), want)


def random_pool(seed: int) -> MaxPool2d:
    pick = random.Random(seed)
    kernel = (pick.randint(1, 3), pick.randint(1, 4))
    return MaxPool2d(
        batch=pick.randint(1, 2),
        channels=pick.randint(1, 4),
        height=pick.randint(3, 14),
        width=pick.randint(4, 9),
        kernel=kernel,
        strides=(pick.randint(1, 3), pick.randint(1, 3)),
        pads=tuple(pick.randint(0, k - 1) for k in (*kernel, *kernel)),  # type: ignore[arg-type]
    )


def test_no_comparison_waits_for_the_one_before_it() -> None:
    workload, knobs = MaxPool2d(1, 1, 9, 9, (3, 3), (2, 2)), OutputTile((1, 4, 4))
    function = max_pool2d(workload, Environment(PRESETS["pynq"]), knobs)
    kernels = [line for line in function.lowered.instructions().splitlines() if " MAX" in line]
    # Two instructions for each row along columns, then three along rows; each covers all results.
    assert len(kernels) == 2 + 3


@pytest.mark.parametrize("config", [*CONFIGS, "tiny-extended"])
@each_seed(range(5))
def test_max_pooling_is_exact(config: str, seed: int) -> None:
    machine = PRESETS[config]
    workload = random_pool(seed * 4 + [*CONFIGS, "tiny-extended"].index(config))
    if machine.pad_value:
        workload = replace(workload, pad_value=-(1 << machine.out_width - 1))
    knobs = OutputTile((1, 2, 3)) if seed == 0 else None
    function = max_pool2d(workload, Environment(machine), knobs)
    x = values(np.random.default_rng(seed), function.args[0].shape, function.args[0].dtype, 128)
    top, left, bottom, right = workload.pads
    around = ((0, 0), (0, 0), (top, bottom), (left, right), (0, 0), (0, 0))
    padded = np.pad(x, around, constant_values=workload.pad_value)
    weights = [identity_weights(Environment(machine))][: len(function.args) - 2]
    windows = sliding_window_view(padded, workload.kernel, axis=(2, 3))
    windows = windows[:, :, :: workload.strides[0], :: workload.strides[1]]
    np.testing.assert_array_equal(run(function, [x, *weights], "reverse"), windows.max((6, 7)))


def test_rounding_is_half_to_even_for_every_sum_near_a_step() -> None:
    requantize = RoundingShift(3, -128, 127)
    sums = np.arange(-3000, 3000)
    want = np.clip(np.rint(sums / 8), -128, 127)
    np.testing.assert_array_equal(requantize.evaluate(sums), want)
    # The same on the machine's ALU: each sum is a bias, added to a product of zero.
    config = PRESETS["pynq"]
    bias = (sums[:2992].reshape(-1, 1, 16) + requantize.half).astype(np.int32)
    function = dense(Dense(1, 1, len(bias), requantize), Environment(config))
    x = np.zeros(function.args[0].shape, np.int8)
    w = np.zeros(function.args[1].shape, np.int8)
    got = run(function, [x, w, bias], "program")
    np.testing.assert_array_equal(got.reshape(-1), want[:2992])


@pytest.mark.parametrize("name", list(PRESETS))
def test_whatever_default_knobs_are_first_fit(name: str) -> None:
    """The formulas for tile sizes agree with the compiler's allocation."""
    config = PRESETS[name]
    env = Environment(config)
    requantize = RoundingShift(6, 0, 127)
    shape = Conv2d(1, 8, 8, 28, 28, (3, 3), requantize, pads=(1, 1, 1, 1))
    workloads: tuple[Workload[Any], ...] = (
        shape,
        Dense(4, 32, 32, requantize),
        MaxPool2d(1, 8, 28, 28, (3, 3), (2, 2)),
    )
    for workload in workloads:
        schedule, args = workload.scheduled(env, choose(workload, config).best)
        assert build(schedule, args, env=env).outputs == [len(args) - 1]


def test_knobs_that_do_not_fit_are_refused_with_the_reason() -> None:
    knobs = Tiling(outputs=3, rows=9, columns=8, inputs=3, kernel_rows=3)
    with pytest.raises(BuildError, match=r"conv2d: .*at most"):
        conv2d(CONV, Environment(PRESETS["tiny"]), knobs)


def test_an_operator_for_which_nothing_fits_says_so() -> None:
    workload = Conv2d(1, 1, 1, 1, 200, (1, 200), RoundingShift(1, -128, 127))
    with pytest.raises(NoScheduleFits, match="wide: the scratchpads are too small"):
        conv2d(workload, Environment(PRESETS["tiny"]), name="wide")


def test_even_tiles_leave_no_small_rest() -> None:
    assert even_tiles(7) == [7, 4, 3, 2, 1]
    assert even_tiles(1) == [1]
