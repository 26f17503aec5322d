"""Grouped and depthwise convolution with bias and requantization.

Groups that are smaller than a tile share one: its weights are then zero where an input and an
output are of different groups, which for a depthwise convolution leaves a diagonal. GEMM takes a
cycle for a vector and a tap of the kernel so, whatever it multiplies by zero; the ALU would take
four (a copy of the input in two, a multiplication by the weights, and the addition).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd, lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function, build
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.search import (
    ROW_CYCLES,
    TILE_CYCLES,
    build_best,
    estimate,
    even_tiles,
    parts,
)

from .conv2d.sizes import Conv2d
from .parts.epilogue import epilogue
from .parts.placing import place_constants, place_operands, place_results

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class GroupedConv2d:
    """``groups`` times the convolution of one of them, whose inputs and outputs are whole tiles."""

    groups: int
    group: Conv2d


@dataclass(frozen=True)
class GroupedConv2dKnobs:
    """How a grouped convolution is cut into tiles.

    ``groups``, ``outputs``, ``rows`` and ``columns`` are the tile of the output that accumulates
    at a time; ``inputs`` channel tiles and ``kernel_rows`` of the kernel are loaded at a time. With
    ``ahead`` the next ones are loaded while the machine computes, and with ``in_turn`` the next
    tile accumulates while one is requantized and stored.
    """

    groups: int
    outputs: int
    rows: int
    columns: int
    inputs: int
    kernel_rows: int
    ahead: bool = False
    in_turn: bool = False

    def is_whole(self, c: Conv2d) -> bool:
        """Whether all that accumulates in a tile is loaded at a time."""
        return self.inputs >= c.inputs and self.kernel_rows >= c.kernel[0]


@dataclass(frozen=True)
class Grouping:
    """``merged`` groups of channels that share tiles, ``groups`` of which there are then, each of
    ``inputs`` and ``outputs`` tiles."""

    merged: int
    groups: int
    inputs: int
    outputs: int


def grouping(channels: int, outputs: int, groups: int, config: Config) -> Grouping:
    """The fewest groups that share tiles, so that all of them are whole, and lie as channels do.

    ``channels`` and ``outputs`` are those of all ``groups``.
    """
    inputs_each, outputs_each = channels // groups, outputs // groups
    least = lcm(
        config.block_in // gcd(config.block_in, inputs_each),
        config.block_out // gcd(config.block_out, outputs_each),
    )
    tiles = parts(channels, config.block_in), parts(outputs, config.block_out)
    for merged in range(least, groups, least):
        times = parts(groups, merged)
        inputs = merged * inputs_each // config.block_in
        results = merged * outputs_each // config.block_out
        if (times * inputs, times * results) == tiles:
            return Grouping(merged, times, inputs, results)
    return Grouping(groups, 1, *tiles)


def grouped_weights(weights: Array, groups: int, config: Config) -> Array:
    """``weights`` (outputs, channels / groups, height, width) as the operator takes them, with
    zeros between different groups."""
    outputs, inputs_each, height, width = weights.shape
    outputs_each = outputs // groups
    way = grouping(inputs_each * groups, outputs, groups, config)
    rows, columns = way.outputs * config.block_out, way.inputs * config.block_in
    tiles = np.zeros((way.groups, rows, columns, height, width), weights.dtype)
    for group in range(groups):
        place, number = divmod(group, way.merged)
        row, column = number * outputs_each, number * inputs_each
        tiles[place, row : row + outputs_each, column : column + inputs_each] = weights[
            group * outputs_each : (group + 1) * outputs_each
        ]
    cut = tiles.reshape(
        way.groups, way.outputs, config.block_out, way.inputs, config.block_in, height, width
    )
    return cut.transpose(0, 1, 3, 5, 6, 2, 4)


def grouped_conv2d(
    workload: GroupedConv2d,
    env: Environment,
    knobs: GroupedConv2dKnobs | None = None,
    name: str = "grouped_conv2d",
) -> Function:
    """A function of input, weights, bias and output, as of `conv2d`, with an axis of groups.

    Input is (batch, groups, inputs, height, width, BATCH, BLOCK_IN) inp_dtype, weights are (groups,
    outputs, inputs, kernel height, kernel width, BLOCK_OUT, BLOCK_IN) wgt_dtype as
    `grouped_weights` makes them, bias is (groups, outputs, BATCH, BLOCK_OUT) acc_dtype, output is
    (batch, groups, outputs, output height, output width, BATCH, BLOCK_OUT) out_dtype. Without knobs
    the cheapest ones are taken. Raises `NoScheduleFits`, or `BuildError` if ``knobs`` do not fit.
    """

    def built(chosen: GroupedConv2dKnobs) -> Function:
        schedule, args = scheduled(workload, env, chosen)
        return build(schedule, args, name=name, env=env)

    if knobs is not None:
        return built(knobs)
    return build_best(name, candidates(workload, env.config), built)


def scheduled(
    workload: GroupedConv2d, env: Environment, knobs: GroupedConv2dKnobs
) -> tuple[te.Schedule, list[Tensor]]:
    """The schedule that ``knobs`` describe, and the arguments of the function."""
    c, groups, acc = workload.group, workload.groups, env.acc_dtype
    top, left, bottom, right = c.pads
    x = te.placeholder(
        (c.batch, groups, c.inputs, c.height, c.width, env.BATCH, env.BLOCK_IN), "x", env.inp_dtype
    )
    w = te.placeholder(
        (groups, c.outputs, c.inputs, *c.kernel, env.BLOCK_OUT, env.BLOCK_IN), "w", env.wgt_dtype
    )
    before, after = (0, 0, 0, top, left, 0, 0), (0, 0, 0, bottom, right, 0, 0)
    x_buf = te.pad(x, before, after, c.pad_value, name="x_buf")
    w_buf = te.compute(w.shape, lambda *i: w(*i), "w_buf")
    ci, dy, dx, ki = (
        te.reduce_axis((0, extent), axis)
        for extent, axis in zip(
            (c.inputs, *c.kernel, env.BLOCK_IN), ("ci", "dy", "dx", "ki"), strict=True
        )
    )
    size = (c.output_height, c.output_width)
    conv = te.compute(
        (c.batch, groups, c.outputs, *size, env.BATCH, env.BLOCK_OUT),
        lambda n, g, o, h, w, b, k: te.sum(
            x_buf[
                n,
                g,
                ci,
                h * c.strides[0] + dy * c.dilations[0],
                w * c.strides[1] + dx * c.dilations[1],
                b,
                ki,
            ].astype(acc)
            * w_buf[g, o, ci, dy, dx, k, ki].astype(acc),
            axis=[ci, dy, dx, ki],
        ),
        "conv",
    )
    end = epilogue(conv, (groups, c.outputs), lambda n, g, o, h, w: (g, o), c.requantize, env)
    y = end.y

    s = te.create_schedule(y.op)
    n, g, o, h, w_, b, k = s[y].op.axis
    (go, gi), (oo, oi), (ho, hi), (wo, wi) = (
        s[y].split(axis, factor)
        for axis, factor in (
            (g, knobs.groups),
            (o, knobs.outputs),
            (h, knobs.rows),
            (w_, knobs.columns),
        )
    )
    s[y].reorder(go, oo, n, ho, wo, gi, oi, hi, wi, b, k)
    s[y].pragma(gi, env.dma_copy)
    place_results(s, y, conv, end.stages, wo, knobs.in_turn, env)
    place_constants(s, y, end.buffer, oo, knobs.in_turn, env)

    n, g, o, h, w_, b, k = s[conv].op.axis
    co, ci_ = s[conv].split(ci, knobs.inputs)
    do, di = s[conv].split(dy, knobs.kernel_rows)
    s[conv].reorder(co, do, n, g, o, ci_, di, dx, h, w_, b, k, ki)
    s[conv].tensorize(b, env.gemm)
    copies = 2 if knobs.ahead else 1
    operands = ((x_buf, env.inp_scope, wo, copies), (w_buf, env.wgt_scope, oo, copies))
    place_operands(s, y, conv, operands, None if knobs.is_whole(c) else do, env)
    return s, [x, w, end.constants, y]


def candidates(
    workload: GroupedConv2d, config: Config
) -> Iterator[tuple[float, GroupedConv2dKnobs]]:
    """Knobs whose tiles fit the scratchpads, with an estimate of their cycles."""
    c = workload.group
    for groups, outputs, rows, inputs, kernel, ahead in product(
        even_tiles(workload.groups),
        even_tiles(c.outputs),
        even_tiles(c.output_height),
        even_tiles(c.inputs),
        even_tiles(c.kernel[0]),
        (True, False),
    ):
        copies = 2 if ahead else 1
        if copies * groups * outputs * inputs * kernel * c.kernel[1] > config.wgt.depth:
            continue
        for in_turn in (True, False) if config.overlap else (False,):
            constants = workload.groups * c.outputs if in_turn else groups * outputs
            bank = config.acc.depth // 2 if in_turn else config.acc.depth
            room = bank - c.requantize.constants * constants
            for columns in even_tiles(c.output_width):
                loaded = groups * inputs * c.input_rows(rows, kernel) * c.input_columns(columns)
                results = groups * outputs * rows * columns
                if (
                    copies * loaded <= config.inp.depth
                    and c.requantize.accumulators * results <= room
                ):
                    knobs = GroupedConv2dKnobs(
                        groups, outputs, rows, columns, inputs, kernel, ahead, in_turn
                    )
                    yield _cycles(workload, config, knobs), knobs
                    # Narrower tiles load more.
                    break


def _cycles(workload: GroupedConv2d, config: Config, knobs: GroupedConv2dKnobs) -> float:
    """An estimate, with the rows of a load one after the other."""
    c = workload.group
    weight_tiles = parts(workload.groups, knobs.groups) * parts(c.outputs, knobs.outputs)
    images = c.batch * parts(c.output_height, knobs.rows) * parts(c.output_width, knobs.columns)
    steps = parts(c.inputs, knobs.inputs) * parts(c.kernel[0], knobs.kernel_rows)
    tiles = images * weight_tiles
    row = c.input_columns(knobs.columns) * config.inp.element_bytes / config.bus_bytes + ROW_CYCLES
    region = knobs.groups * knobs.inputs * c.input_rows(knobs.rows, knobs.kernel_rows) * row
    weights = knobs.groups * knobs.outputs * knobs.inputs * knobs.kernel_rows * c.kernel[1]
    weights = weights * config.wgt.element_bytes // config.bus_bytes
    weight_loads = weight_tiles if steps == 1 else tiles * steps
    vectors = c.batch * workload.groups * c.outputs * c.output_height * c.output_width
    operations = 0 if knobs.in_turn else c.requantize.operations
    resets = 0 if config.overwrite and knobs.is_whole(c) else 1
    compute = vectors * (c.inputs * c.kernel[0] * c.kernel[1] + operations + resets)
    stored = vectors * config.out.element_bytes / config.bus_bytes
    return estimate(
        compute + tiles * (steps + 4) * TILE_CYCLES,
        tiles * steps * region + weight_loads * weights + stored,
        region + weights,
        knobs.ahead,
    )
