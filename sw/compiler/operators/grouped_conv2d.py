"""Grouped and depthwise convolution with bias and requantization.

Groups smaller than a tile share one, with zero weights between different groups: for a depthwise
convolution only a diagonal is nonzero. GEMM then takes one cycle per vector and kernel tap, mostly
for products with zero; the ALU would take four: two to copy the input, one to multiply by the
weights, one to add. On a machine with DEPTHWISE, GEMM computes several taps of a kernel row per
cycle if groups have one or two channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Affine, Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.product_candidates import best_tilings
from amaranth_vta.sw.compiler.tuner.search import Choice
from amaranth_vta.sw.compiler.tuner.tiled_product import TiledProduct, TileSizes, Tiling
from amaranth_vta.sw.compiler.tuner.tiles import divisors, even_tiles, parts
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .building_blocks.epilogue import Requantization, Step, epilogue
from .building_blocks.product import Product, of_term, reduce_axes, term_axis
from .building_blocks.residual import Addition
from .building_blocks.window import SlidingWindow, padded
from .conv2d import Conv2d

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class GroupedConv2d(TiledProduct):
    """``groups`` convolutions, each of size ``group``, whose inputs and outputs are whole tiles.
    With ``taps`` > 1, each product covers that many taps of a kernel row. If the groups are
    ``alike``, all share the weights and the bias or parameters of one.
    """

    groups: int
    group: Conv2d
    taps: int = 1
    alike: bool = False

    varies_copies = False

    @property
    def is_first(self) -> bool:  # type: ignore[override]
        return self.group.is_first

    @property
    def row_taps(self) -> RowTaps:
        """The products that cover a row of the kernel."""
        return RowTaps.of(self.group.kernel[1], self.taps)

    @property
    def weights_per_row(self) -> int:
        """Weight tiles in a row of the kernel, per input tile and output tile."""
        return self.row_taps.products * self.group.terms

    @property
    def constants(self) -> int:
        """Number of groups with separate weights and bias."""
        return 1 if self.alike else self.groups

    @property
    def products(self) -> int:
        """GEMM micro-ops per vector of results."""
        return self.group.inputs * self.group.kernel[0] * self.weights_per_row

    @property
    def extents(self) -> Mapping[int, int]:
        c = self.group
        return {-7: c.batch, -6: self.groups, -5: c.outputs, -4: c.output_height}

    def part(self, axis: int, extent: int) -> GroupedConv2d:
        if axis == -6:
            return replace(self, groups=extent)
        return replace(self, group=self.group.part(-6 if axis == -7 else axis, extent))

    def without_parameters(self) -> GroupedConv2d:
        """The same convolutions with placeholders for constants that are arguments."""
        return replace(self, group=self.group.without_parameters())

    def followed_by(self, step: Step) -> GroupedConv2d | None:
        """These convolutions with a ``step`` at their end; None if that is impossible."""
        group = None if isinstance(step, Addition) else self.group.followed_by(step)
        return None if group is None else replace(self, group=group)

    def scheduled(self, env: Environment, knobs: Tiling) -> Scheduled:
        return scheduled(self, env, knobs)

    def considered(self, config: Config) -> Choice[Tiling]:
        return best_tilings(self, config)

    # Nothing assigns to fields of a frozen dataclass.
    @property
    def batch(self) -> int:  # type: ignore[override]
        return self.group.batch

    @property
    def requantize(self) -> Requantization:  # type: ignore[override]
        return self.group.requantize

    @cached_property
    def whole(self) -> TileSizes:
        return replace(self.group.whole, outputs=self.groups * self.group.outputs)

    @property
    def weight_loops(self) -> tuple[int, ...]:
        return self.row_taps.products, self.group.terms

    def tiles_of_outputs(self) -> list[int]:
        # Whole groups, or parts of one.
        each = self.group.outputs
        return [each * groups for groups in even_tiles(self.groups)] + divisors(each)[1:]

    def image_tile(self, tile: TileSizes) -> tuple[int, int]:
        c = self.group
        rows = SlidingWindow.input_rows(c, tile.rows, tile.kernel_rows)
        return self._inputs(tile) * rows, c.input_columns(tile.columns)

    def image_in_dram(self, tile: TileSizes) -> tuple[int, int, int]:
        return self.group.image_in_dram(replace(tile, inputs=self._inputs(tile)))

    def _inputs(self, tile: TileSizes) -> int:
        """Channel tiles of inputs, in all groups of a tile."""
        return -(-tile.outputs // self.group.outputs) * tile.inputs


@dataclass(frozen=True)
class RowTaps:
    """The ``products`` that cover a kernel row start ``step`` taps apart. They may overlap, so that
    none reaches beyond the row; a tap that two products cover has zero weights in the second.
    """

    products: int
    step: int

    @staticmethod
    def of(columns: int, taps: int) -> RowTaps:
        """Cover a row of ``columns`` taps with the fewest products of ``taps`` each; ``columns``
        must be at least ``taps``.
        """
        rest, products = columns - taps, 1
        while rest > taps * (products - 1) or rest % max(products - 1, 1):
            products += 1
        return RowTaps(products, rest // max(products - 1, 1))


@dataclass(frozen=True)
class Grouping:
    """Merges every ``merged`` groups of channels so that they share tiles; the result is ``groups``
    larger groups of ``inputs`` and ``outputs`` tiles each.
    """

    merged: int
    groups: int
    inputs: int
    outputs: int


def grouping(channels: int, outputs: int, groups: int, config: Config) -> Grouping:
    """Merge the fewest groups for which all tiles are full and channels keep their order.

    ``channels`` and ``outputs`` count the channels of all ``groups`` together.
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


def taps_at_once(
    channels: int,
    outputs: int,
    groups: int,
    kernel: tuple[int, int],
    dilations: tuple[int, int],
    config: Config,
) -> int:
    """Number of taps of a kernel row per product: several with DEPTHWISE if each group has one or
    two input channels and as many output channels.
    """
    way, each = grouping(channels, outputs, groups, config), channels // groups
    square = config.block_in == config.block_out
    pairs = channels == outputs and each <= 2 and square and (way.inputs, way.outputs) == (1, 1)
    suits = pairs and kernel[1] >= config.taps and dilations[1] == 1
    return config.taps if suits else 1


def grouped_weights(
    weights: Array, groups: int, config: Config, taps: int = 1, terms: int = 1
) -> Array:
    """Arrange ``weights`` (outputs, channels / groups, height, width · terms) in the layout of
    `grouped_conv2d`, with zeros between different groups; ``taps`` as in `GroupedConv2d`.
    """
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
    whole = cut.transpose(0, 1, 3, 5, 6, 2, 4)
    return whole if taps == 1 else _tapped(whole, taps, terms)


def _tapped(whole: Array, taps: int, terms: int) -> Array:
    """Pack several taps into each tile of ``whole`` (groups, 1, 1, height, width · terms, BLOCK,
    BLOCK): column 2t + i of row k is output k's weight for channel i of its pair in tap t of the
    product.
    """
    *outer, width, block, _ = whole.shape
    row = RowTaps.of(width // terms, taps)
    split = whole.reshape(*outer, width // terms, terms, block, block)
    found = np.zeros((*outer, row.products, terms, block, block), whole.dtype)
    outputs, covered = np.arange(block), 0
    for at in range(row.products):
        for tap in range(taps):
            column = at * row.step + tap
            if column < covered:
                continue
            covered = column + 1
            for channel in range(2):
                diagonal = split[..., column, :, outputs, outputs // 2 * 2 + channel]
                found[..., at, :, outputs, 2 * tap + channel] = diagonal
    return found.reshape(*outer, row.products * terms, block, block)


def grouped_conv2d(
    workload: GroupedConv2d,
    env: Environment,
    knobs: Tiling | None = None,
    name: str = "grouped_conv2d",
) -> Function:
    """Build a function of input, weights, bias and output: `conv2d` with an axis of groups.

    Input is (batch, groups, inputs, height, width, BATCH, BLOCK_IN) inp_dtype, weights are (groups,
    outputs, inputs, kernel height, kernel width, BLOCK_OUT, BLOCK_IN) wgt_dtype from
    `grouped_weights`, bias is (groups, outputs, BATCH, BLOCK_OUT) acc_dtype or requantization
    parameters (see `epilogue`), output is (batch, groups, outputs, output height, output width,
    BATCH, BLOCK_OUT) out_dtype. Default knobs and exceptions: see `tuned`.
    """
    return tuned(workload, env, knobs, name)


def scheduled(workload: GroupedConv2d, env: Environment, knobs: Tiling) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    product = expression(workload, env)
    y = product.epilogue.y
    s = te.create_schedule(y.op)
    *part, n, g, o, h, w, b, k = s[y].op.axis
    groups = parts(knobs.outputs, workload.group.outputs)
    tile = ((g, groups), (o, knobs.outputs // groups), (h, knobs.rows), (w, knobs.columns))
    (go, gi), (oo, oi), (ho, hi), (wo, wi) = (s[y].split(axis, factor) for axis, factor in tile)
    s[y].reorder(go, oo, n, ho, wo, *part, gi, oi, hi, wi, b, k)
    s[y].pragma(part[0] if part else gi, env.dma_copy)
    product.place_results(s, wo, env, knobs.copies_of_results)
    product.place_constants(s, None if knobs.in_turn else oo, env)

    steps = tensorize(workload, product, s, (knobs.inputs, knobs.kernel_rows), env)
    step = None if workload.is_whole(knobs) else steps
    copies = workload.copies_of_image(knobs), workload.copies_of_weights(knobs)
    product.place_operands(s, wo, oo, step, copies, env)
    return s, product.args


def tensorize(
    workload: GroupedConv2d,
    product: Product,
    s: te.Schedule,
    step: tuple[int, int],
    env: Environment,
) -> te.IterVar:
    """Tensorize the sum for GEMM, in steps of ``step`` = (input tiles, kernel rows); return the
    axis over steps.
    """
    conv = product.total
    n, g, o, h, w, b, k = s[conv].op.axis
    # Number of axes within a weight tile: its column, or the tap and channel that make up a column.
    within = 1 if workload.taps == 1 else 2
    (ci, dy, dx, *term), inner = product.axes[:-within], product.axes[-within:]
    (co, ci), (do, dy) = (s[conv].split(*item) for item in zip((ci, dy), step, strict=True))
    lanes = [k] if workload.taps == 1 else s[conv].split(k, 2)
    s[conv].reorder(co, do, n, g, o, ci, dy, dx, *term, h, w, b, *lanes, *inner)
    s[conv].tensorize(b, env.gemm)
    # Load whole tiles, including columns that hold no taps.
    s[product.w_buf].compute_whole(s[product.w_buf].op.axis[-1])
    return s[conv].fuse(co, do)


def expression(workload: GroupedConv2d, env: Environment) -> Product:
    """The convolutions as a sum of products for GEMM, and their epilogue."""
    c = workload.group
    x = te.placeholder(
        (c.batch, workload.groups, c.inputs, c.height, c.width, env.BATCH, env.BLOCK_IN),
        "x",
        env.inp_dtype,
    )
    return sums(workload, env, x, padded(x, c.pads, c.pad_value, "x_buf"))


def sums(workload: GroupedConv2d, env: Environment, x: Tensor, x_buf: Tensor) -> Product:
    """Like `expression`, for an input that is already padded in ``x_buf``."""
    c, groups, acc = workload.group, workload.groups, env.acc_dtype
    row, per_row = workload.row_taps, workload.weights_per_row
    w = te.placeholder(
        (
            workload.constants,
            c.outputs,
            c.inputs,
            c.kernel[0],
            per_row,
            env.BLOCK_OUT,
            env.BLOCK_IN,
        ),
        "w",
        env.wgt_dtype,
    )
    w_buf = te.compute(w.shape, lambda *i: w(*i), "w_buf")
    ci, dy, dx = reduce_axes(ci=c.inputs, dy=c.kernel[0], dx=row.products)
    term = term_axis(c.terms)
    inner = reduce_axes(ki=env.BLOCK_IN)
    if workload.taps > 1:
        inner = reduce_axes(tap=workload.taps, channel=2)
    axes = (ci, dy, dx, *term, *inner)
    size = (c.output_height, c.output_width)

    def at(w: Expr, k: Expr) -> tuple[Expr, Expr, Expr]:
        """Column and channel of the input, and column of the weight tile."""
        if workload.taps == 1:
            return w * c.strides[1] + dx * c.dilations[1], inner[0], inner[0]
        tap, channel = inner
        column = w * c.strides[1] + dx * row.step + tap
        return column, k // 2 * 2 + channel, tap * 2 + channel

    def constants(g: Expr) -> Expr:
        return Affine({}) if workload.alike else g

    def term_of(n: Expr, g: Expr, o: Expr, h: Expr, w: Expr, b: Expr, k: Expr) -> Expr:
        column, lane, weight = at(w, k)
        y = h * c.strides[0] + dy * c.dilations[0]
        tile = w_buf[constants(g), o, ci, dy, of_term(dx, c.terms, term), k, weight]
        return x_buf[n, g, ci, y, column, b, lane].astype(acc) * tile.astype(acc)

    conv = te.compute(
        (c.batch, groups, c.outputs, *size, env.BATCH, env.BLOCK_OUT),
        lambda *i: te.sum(term_of(*i), axis=list(axes)),
        "conv",
    )
    channels = (workload.constants, c.outputs)
    end = epilogue(conv, channels, lambda n, g, o, h, w: (constants(g), o), c.requantize, env)
    return Product(x, w, x_buf, w_buf, axes, conv, end)
