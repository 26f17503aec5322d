"""Grouped and depthwise convolutions, from channels to tiles and back."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import (
    PerChannelScale,
    RoundingShift,
)
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.grouped_conv2d import (
    GroupedConv2d,
    Grouping,
    RowTaps,
    grouped_conv2d,
    grouped_weights,
    grouping,
    taps_at_once,
)
from amaranth_vta.sw.compiler.tuner.tiled_product import Tiling
from amaranth_vta.sw.compiler.tuner.workload import choose
from tests.support.seeds import each_seed

Array = npt.NDArray[Any]
CONFIGS = ["tiny", "batch2", "int4", "pynq", "block32", "tiny-extended", "pynq-extended"]
# Channels of a group, outputs of a group.
KINDS = [(1, 1), (2, 2), (3, 3), (1, 2), (16, 16), (4, 8)]


class Case:
    """A random grouped convolution, by channels, and its tensors in tiles."""

    def __init__(self, config: Config, groups: int, each: tuple[int, int], seed: int) -> None:
        pick, self.config = random.Random(seed), config
        self.groups, self.inputs, self.outputs = groups, groups * each[0], groups * each[1]
        way = grouping(self.inputs, self.outputs, groups, config)
        high = (1 << config.out_width - 1) - 1
        kernel, dilations = (pick.randint(1, 3), pick.randint(1, 3)), (1, pick.choice([1, 2]))
        rescale = config.requantize and seed % 2 == 0
        requantize = (
            PerChannelScale() if rescale else RoundingShift(pick.randint(0, 4), -high - 1, high)
        )
        channels = self.inputs, self.outputs, groups
        self.workload = GroupedConv2d(
            way.groups,
            Conv2d(
                batch=pick.randint(1, 2),
                inputs=way.inputs,
                outputs=way.outputs,
                height=pick.randint(5, 9),
                width=pick.randint(5, 9),
                kernel=kernel,
                requantize=requantize,
                strides=(pick.randint(1, 2), pick.randint(1, 2)),
                dilations=dilations,
                pads=(pick.randint(0, 1), pick.randint(0, 2), pick.randint(0, 2), 0),
            ),
            taps_at_once(*channels, kernel, dilations, config),
        )
        self.rng = np.random.default_rng(seed)
        conv, images = self.workload.group, self.workload.group.batch * config.batch
        self.x = self.rng.integers(-8, 8, (images, self.inputs, conv.height, conv.width))
        self.w = self.rng.integers(-8, 8, (self.outputs, each[0], *kernel))

    def cut(self, group: Conv2d) -> None:
        """Replace the sizes by ``group``, with random weights and images."""
        channels = self.inputs, self.outputs, self.groups
        taps = taps_at_once(*channels, group.kernel, group.dilations, self.config)
        self.workload = replace(self.workload, group=group, taps=taps)
        size = (len(self.x), self.inputs, group.height, group.width)
        self.x = self.rng.integers(-8, 8, size)
        self.w = self.rng.integers(-8, 8, (*self.w.shape[:2], *group.kernel))

    def arguments(self) -> list[Array]:
        config, conv = self.config, self.workload.group
        tiles = self.workload.groups * conv.inputs
        padded = np.zeros((len(self.x), tiles * config.block_in, *self.x.shape[2:]), np.int8)
        padded[:, : self.inputs] = self.x
        cut = padded.reshape(
            conv.batch,
            config.batch,
            self.workload.groups,
            conv.inputs,
            config.block_in,
            *self.x.shape[2:],
        )
        x = cut.transpose(0, 2, 3, 5, 6, 1, 4)
        w = grouped_weights(self.w.astype(np.int8), self.groups, config, self.workload.taps)
        channels = (self.workload.groups, conv.outputs, 1, config.block_out)
        bias = self.rng.integers(-90, 90, channels)
        if isinstance(conv.requantize, RoundingShift):
            bias += conv.requantize.half
            return [x, w, np.repeat(bias, config.batch, axis=2).astype(f"int{config.acc_width}")]
        scale = self.rng.uniform(0.01, 0.2, bias.size)
        parameters = te.requantization_parameters(bias.reshape(-1), scale, 3, -128, 120)
        parameters = np.moveaxis(parameters.reshape(*channels, -1), -1, 2)
        return [x, w, np.repeat(parameters, config.batch, axis=3)]

    def sums(self) -> Array:
        """The sums, computed group by group from channels, in tiles."""
        conv, each = self.workload.group, self.inputs // self.groups
        top, left, bottom, right = conv.pads
        padded = np.pad(self.x, ((0, 0), (0, 0), (top, bottom), (left, right)))
        reach = [(k - 1) * d + 1 for k, d in zip(conv.kernel, conv.dilations, strict=True)]
        windows = sliding_window_view(padded, reach, axis=(2, 3))
        windows = windows[:, :, :: conv.strides[0], :: conv.strides[1]]
        windows = windows[..., :: conv.dilations[0], :: conv.dilations[1]]
        total = np.zeros(
            (
                len(self.x),
                self.workload.groups * conv.outputs * self.config.block_out,
                *windows.shape[2:4],
            ),
            np.int64,
        )
        for output, weights in enumerate(self.w):
            first = output // (self.outputs // self.groups) * each
            total[:, output] = np.einsum(
                "nchwyx,cyx->nhw", windows[:, first : first + each], weights
            )
        cut = total.reshape(
            conv.batch,
            self.config.batch,
            self.workload.groups,
            conv.outputs,
            self.config.block_out,
            *windows.shape[2:4],
        )
        return cut.transpose(0, 2, 3, 5, 6, 1, 4)

    def want(self, constants: Array, dtype: str) -> Array:
        total, requantize = self.sums(), self.workload.group.requantize
        if isinstance(requantize, RoundingShift):
            result = requantize.evaluate(total + constants[:, :, None, None] - requantize.half)
        else:
            parts = [constants[:, :, n][:, :, None, None] for n in range(constants.shape[2])]
            result = te.requantized(total.astype(np.int32), *parts)
        return result.astype("int8" if dtype == "int4" else dtype)


def test_groups_share_tiles_only_as_far_as_they_must() -> None:
    pynq, batch2 = PRESETS["pynq"], PRESETS["batch2"]
    assert grouping(64, 64, 64, pynq) == Grouping(merged=16, groups=4, inputs=1, outputs=1)
    assert grouping(24, 24, 24, pynq) == Grouping(16, 2, 1, 1)
    assert grouping(64, 64, 4, pynq) == Grouping(1, 4, 1, 1)
    assert grouping(96, 192, 3, pynq) == Grouping(1, 3, 2, 4)
    # With 24 channels per group, two groups fill three tiles exactly; one group does not fill two.
    assert grouping(96, 96, 4, pynq) == Grouping(2, 2, 3, 3)
    assert grouping(72, 72, 3, pynq) == Grouping(3, 1, 5, 5)
    # 8 inputs and 4 outputs to a tile.
    assert grouping(16, 16, 16, batch2) == Grouping(8, 2, 1, 2)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_grouped_convolutions_are_exact_with_default_knobs(
    config: str, kind: int, run: Any
) -> None:
    seed = kind * 7 + CONFIGS.index(config)
    groups = random.Random(seed).choice([3, 5, 8, 17])
    case = Case(PRESETS[config], groups, KINDS[kind], seed)
    function = grouped_conv2d(case.workload, Environment(case.config))
    inputs = case.arguments()
    got = run(function, inputs, order=f"random:{seed}")
    np.testing.assert_array_equal(got, case.want(inputs[2], function.args[-1].dtype))


@pytest.mark.parametrize(
    "knobs",
    [
        Tiling(1, 1, 2),
        Tiling(3, 2, 9, 1, 3, ahead=True, image_copies=4),
        Tiling(6, 4, 3, 3, 2, ahead=True, in_turn=True, result_copies=4),
    ],
)
@pytest.mark.parametrize("config", ["pynq", "pynq-extended"])
def test_grouped_convolutions_are_exact_however_they_are_cut(
    config: str, knobs: Tiling, run: Any
) -> None:
    case = Case(PRESETS[config], 4, (24, 24), 6)
    function = grouped_conv2d(case.workload, Environment(case.config), knobs)
    inputs = case.arguments()
    got = run(function, inputs, order="last:load")
    np.testing.assert_array_equal(got, case.want(inputs[2], function.args[-1].dtype))


@pytest.mark.parametrize("config", ["tiny", "tiny-extended"])
@each_seed([0, 1])
def test_no_pass_changes_what_a_grouped_convolution_does(
    config: str, seed: int, interpreted: Any, run: Any
) -> None:
    case = Case(PRESETS[config], 6, ((1, 1), (4, 8))[seed], seed)
    conv = replace(case.workload.group, batch=1, height=3, width=4, kernel=(2, 2), strides=(1, 2))
    case.x = case.x[:1]
    case.cut(replace(conv, dilations=(1, 1)))
    env = Environment(case.config)
    knobs = Tiling(1, 2, 2, ahead=True, in_turn=bool(seed))
    inputs = case.arguments()
    want = case.want(inputs[2], env.out_dtype)
    interpreted(case.workload.scheduled(env, knobs), inputs, want, env)
    function = grouped_conv2d(case.workload, env)
    np.testing.assert_array_equal(run(function, inputs, device="rtl"), want)


@pytest.mark.parametrize(
    ("depthwise", "kernel", "products"),
    [
        (0, (3, 3), 9),
        (1, (3, 3), 3),
        (1, (1, 4), 2),
        (1, (2, 5), 4),
        (1, (3, 7), 9),
        (1, (3, 2), 6),
    ],
)
@pytest.mark.parametrize("each", [1, 2])
def test_a_depthwise_convolution_takes_one_cycle_per_vector_and_product(
    depthwise: int, kernel: tuple[int, int], products: int, each: int, run: Any
) -> None:
    config = replace(PRESETS["pynq-extended"], depthwise=depthwise)
    case = Case(config, 48 // each, (each, each), 2)
    case.cut(replace(case.workload.group, height=9, width=9, kernel=kernel, dilations=(1, 1)))
    conv, inputs = case.workload.group, case.arguments()
    got = run(grouped_conv2d(case.workload, Environment(config)), inputs)
    np.testing.assert_array_equal(got, case.want(inputs[2], "int8"))
    vectors = conv.batch * 3 * conv.output_height * conv.output_width
    assert run.counters["gemm_uops"] == vectors * products
    assert run.counters["alu_uops"] == vectors


def test_products_of_a_row_reach_no_further_than_the_row() -> None:
    for columns, taps in ((3, 3), (4, 3), (5, 3), (6, 3), (7, 3), (8, 3), (11, 3), (2, 2), (5, 2)):
        row = RowTaps.of(columns, taps)
        assert (row.products - 1) * row.step + taps == columns
        assert row.step <= taps
        assert row.products < columns


@pytest.mark.parametrize("name", list(PRESETS))
def test_whatever_default_knobs_are_first_fit(name: str) -> None:
    config = PRESETS[name]
    way = grouping(64, 64, 64, config)
    conv = Conv2d(
        1, way.inputs, way.outputs, 28, 28, (3, 3), RoundingShift(6, -8, 7), pads=(1,) * 4
    )
    workload = GroupedConv2d(way.groups, conv)
    knobs = choose(workload, config).best
    assert grouped_conv2d(workload, Environment(config), knobs).outputs == [3]


def test_tiles_of_one_size_are_chosen_where_others_would_take_fewer() -> None:
    # Tiles of 23 x 38 are fewer, but the edge tiles would be smaller: 290,000 cycles in all.
    config = PRESETS["pynq-extended"]
    sizes = Conv2d(1, 1, 1, 112, 112, (3, 3), PerChannelScale(), pads=(1, 1, 1, 1))
    choice = choose(GroupedConv2d(2, sizes), config)
    knobs = choice.best
    assert 112 % knobs.rows == 112 % knobs.columns == 0
    # Tiles of 28 x 28 take 230,737 cycles.
    assert choice.cycles < 230_000
