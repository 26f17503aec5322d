"""Two-dimensional convolution with bias and requantization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Self

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.timing import copied_sources
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr, IterVar
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.product_candidates import best_tilings
from amaranth_vta.sw.compiler.tuner.search import Choice
from amaranth_vta.sw.compiler.tuner.tiled_product import TiledProduct, TileSizes, Tiling
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .building_blocks.epilogue import (
    Requantization,
    Step,
    epilogue,
    followed_by,
)
from .building_blocks.pooling import Phases, Pooling
from .building_blocks.product import (
    Product,
    of_term,
    reduce_axes,
    term_axis,
    weight_operand,
)
from .building_blocks.residual import Addition
from .building_blocks.row_sums import RowSums
from .building_blocks.steps import LookupTable
from .building_blocks.window import SlidingWindow, padded


@dataclass(frozen=True)
class Conv2d(SlidingWindow, TiledProduct):
    """Sizes of a convolution. ``batch``, ``inputs`` and ``outputs`` count tiles of BATCH images,
    BLOCK_IN and BLOCK_OUT channels; ``height`` and ``width`` of the input are in pixels; ``pads``
    are rows and columns of ``pad_value`` at the top, left, bottom and right. Each weight is the sum
    of ``terms`` values of wgt_dtype, for weights that need more bits, or with ``int4_weights`` one
    int4 value (extension WGT_4BIT). With ``row_sums`` a weighted
    sum of a pixel's inputs is added to all of its results (see `RowSums`). A ``pooling`` may be
    fused; ``output_height`` and ``output_width`` are then the size after it.
    If the layer ``is_first`` in its launch, no preceding layer hides the load of its first weights.
    """

    batch: int
    inputs: int
    outputs: int
    height: int
    width: int
    kernel: tuple[int, int]
    requantize: Requantization
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    pad_value: int = 0
    terms: int = 1
    row_sums: bool = False
    pooling: Pooling | None = None
    int4_weights: bool = False
    # Not part of the name under which knobs are recorded.
    is_first: bool = field(default=False, repr=False)

    keeps_images = True

    def scheduled(self, env: Environment, knobs: Tiling) -> Scheduled:
        return scheduled(self, env, knobs)

    def considered(self, config: Config) -> Choice[Tiling]:
        return best_tilings(self, config)

    @property
    def output_height(self) -> int:
        return self._output[0] if self.pooling is None else self.pooling.output[0]

    @property
    def output_width(self) -> int:
        return self._output[1] if self.pooling is None else self.pooling.output[1]

    @property
    def image(self) -> tuple[int, int]:
        """Rows and columns of results before pooling."""
        if self.pooling is None:
            return self._output
        rows, columns = map(min, self._output, self.pooling.image)
        return rows, columns

    @property
    def carries(self) -> bool:
        """Whether each tile is one row of maxima and carries results over to the tile below."""
        return self.pooling is not None and self.pooling.carries

    def without_parameters(self) -> Self:
        """The same sizes with placeholders for constants that are arguments."""
        requantize = self.requantize.without_parameters()
        if self.pooling is not None:
            # It decides whether the maxima are requantized, or all sums.
            requantize = replace(requantize, wraps=self.requantize.wraps)
        return replace(self, requantize=requantize)

    @property
    def extents(self) -> Mapping[int, int]:
        return {-6: self.batch, -5: self.outputs, -4: self.output_height}

    def part(self, axis: int, extent: int) -> Self:
        if axis == -6:
            return replace(self, batch=extent)
        return replace(self, outputs=extent) if axis == -5 else self.of_rows(extent)

    def of_rows(self, rows: int) -> Self:
        """A convolution like ``rows`` rows of results, without padding above and below."""
        if self.pooling is None:
            return super().of_rows(rows)
        pooling = replace(self.pooling, output=(rows, self.pooling.output[1]))
        return replace(super().of_rows(self.image_rows(rows)), pooling=pooling)

    def followed_by(self, step: Step) -> Self | None:
        """This convolution with a ``step`` at its end; None if that is impossible."""
        return followed_by(self, step) if self.pooling is None else None

    def with_second(self, step: LookupTable) -> Self | None:
        """This convolution with a second result, computed by a ``step`` from its first; None if
        that is impossible."""
        if self.pooling is not None or self.requantize.second is not None:
            return None
        return replace(self, requantize=replace(self.requantize, second=step))

    @property
    def addition(self) -> Addition | None:
        """The addition of another tensor, fused with the convolution."""
        return self.requantize.addition

    @property
    def weights_per_row(self) -> int:
        """Weight tiles in a row of the kernel, per input tile and output tile."""
        return self.kernel[1] * self.terms

    @property
    def products(self) -> int:
        """GEMM micro-ops per vector of results."""
        return self.inputs * self.kernel[0] * self.weights_per_row

    @property
    def operations(self) -> int:
        """ALU micro-ops per vector of results before pooling."""
        return self.requantize.operations * (not self.pools_sums) + self.row_sums

    @property
    def pools_sums(self) -> bool:
        """Whether a pooling precedes the requantization."""
        return self.pooling is not None and self.requantize.follows_maxima

    @cached_property
    def _steps(self) -> tuple[int, int]:
        """The steps of `Phases` in tiles whose operands are all loaded at once. Phases take more
        instructions, which pays where the ALU would take longer than GEMM.
        """
        if self.pooling is None or not self.pools_sums:
            return 1, 1
        cleared, compared = self.pooling.operations((1, 1))
        sums = prod(self.pooling.strides)
        others = cleared + self.requantize.operations + self.row_sums * sums
        # Comparisons of accumulators in the same bank take two cycles.
        if others + 2 * compared < sums * self.products:
            return 1, 1
        return self.pooling.steps(self.image)

    def phase_steps(self, tile: TileSizes) -> tuple[int, int]:
        """The steps of the `Phases` in which the sums of a tile are computed."""
        return self._steps if self.is_whole(tile) else (1, 1)

    def phases_of_sums(self, tile: TileSizes) -> tuple[int, int, int]:
        steps, (rows, columns) = self.phase_steps(tile), self.sums(tile)
        count = 1 if self.pooling is None else len(self.pooling.phases(steps))
        return count, -(-rows // steps[0]), -(-columns // steps[1])

    def pooled_cycles(self, t: Tiling, config: Config) -> Any:
        if self.pooling is None:
            return 0
        divided, whole = (self._pooled_cycles(t, config, steps) for steps in (self._steps, (1, 1)))
        return np.where(self.is_whole(t), divided, whole)

    def _pooled_cycles(self, t: Tiling, config: Config, steps: tuple[int, int]) -> Any:
        """`pooled_cycles` for sums in `Phases`."""
        assert self.pooling is not None
        cleared, compared = self.pooling.operations(steps)
        others: Any = cleared + self.requantize.operations * self.pools_sums
        # Successive additions of a row sum read it only once.
        others += self.row_sums * prod(self.pooling.strides) / t.outputs
        one = float(config.lane_columns)
        if config.overlap:
            # Both operands of a comparison are in the same bank. In the upper bank, some have a
            # copy.
            two = max(one, 2.0)
            constants = self.requantize.constants * self.outputs + self.requantize.shared
            sources: Any = self.accumulators(t) - self.vectors(t)
            sources = np.maximum(sources * t.copies_of_results / t.banks, 1)
            copied = np.clip((copied_sources(config) - constants) / sources, 0, 1)
            one = two - (two - one) * copied / 2
        return others * config.lane_columns + compared * one

    @property
    def row_step(self) -> int:
        """Stride in rows with which the input is loaded: rows that no output reads are skipped."""
        whole = self.kernel[0] > 1 or any(self.pads) or self.pooling is not None
        return 1 if whole else self.strides[0]

    def image_rows(self, rows: int) -> int:
        """Rows of pre-pooling results that a tile of ``rows`` output rows computes."""
        return rows if self.pooling is None else self.pooling.rows(rows)

    def image_columns(self, columns: int) -> int:
        return columns if self.pooling is None else self.pooling.columns(columns)

    def input_rows(self, rows: int, kernel_rows: int | None = None) -> int:
        return self.rows_read(self.image_rows(rows), kernel_rows)

    def rows_read(self, image_rows: int, kernel_rows: int | None = None) -> int:
        """Rows of input that ``image_rows`` rows of pre-pooling results read."""
        if self.row_step > 1:
            return image_rows
        return super().input_rows(image_rows, kernel_rows)

    def input_columns(self, columns: int, kernel_columns: int | None = None) -> int:
        return super().input_columns(self.image_columns(columns), kernel_columns)

    @cached_property
    def whole(self) -> TileSizes:
        size = self.output_height, self.output_width
        return TileSizes(self.outputs, *size, self.inputs, self.kernel[0])

    @property
    def weight_loops(self) -> tuple[int, ...]:
        return self.kernel[1], self.terms

    def sums(self, tile: TileSizes) -> tuple[int, int]:
        return self.image_rows(tile.rows), self.image_columns(tile.columns)

    def image_tile(self, tile: TileSizes) -> tuple[int, int]:
        # The first tile has no predecessor to carry rows from.
        more = self.pooling.rows_without_carry if self.pooling is not None else 0
        rows = self.rows_read(self.image_rows(tile.rows) + more, tile.kernel_rows)
        return tile.inputs * rows, self.input_columns(tile.columns)

    def image_in_dram(self, tile: TileSizes) -> tuple[int, int, int]:
        rows = np.minimum(self.input_rows(tile.rows, tile.kernel_rows), self.height)
        columns = np.minimum(self.input_columns(tile.columns), self.width)
        whole_rows = (columns == self.width) & (self.row_step == 1) & (not any(self.pads))
        joined = np.where(whole_rows, rows, 1)
        return tile.inputs, rows // joined, columns * joined

    def accumulators(self, tile: TileSizes) -> int:
        if self.pooling is None:
            return super().accumulators(tile)
        divided, whole = (
            self.pooling.accumulators(tile.rows, tile.columns, steps)
            for steps in (self._steps, (1, 1))
        )
        results: Any = tile.outputs * np.where(self.is_whole(tile), divided, whole)
        more = self.requantize.accumulators - 1
        if self.pools_sums:
            results = results + more * self.vectors(tile)
        rows = self.image_rows(tile.rows) + self.pooling.rows_without_carry
        pixels = rows * self.image_columns(tile.columns)
        if not self.pools_sums:
            results = results + more * tile.outputs * pixels
        found: int = results + self.row_sums * pixels
        return found


def conv2d(
    workload: Conv2d, env: Environment, knobs: Tiling | None = None, name: str = "conv2d"
) -> Function:
    """Build a function of input, weights, bias and output.

    Input is (batch, inputs, height, width, BATCH, BLOCK_IN) inp_dtype, weights are (outputs,
    inputs, kernel height, kernel width · terms, BLOCK_OUT, BLOCK_IN) wgt_dtype, bias is (outputs,
    BATCH, BLOCK_OUT) acc_dtype or requantization parameters (see `epilogue`), output is (batch,
    outputs, output height, output width, BATCH, BLOCK_OUT) out_dtype. Default knobs and exceptions:
    see `tuned`.
    """
    return tuned(workload, env, knobs, name)


def scheduled(c: Conv2d, env: Environment, knobs: Tiling) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    product = expression(c, env, c.phase_steps(knobs))
    y = product.epilogue.y
    s = product.epilogue.schedule()
    *part, n, o, h, w, b, k = s[y].op.axis
    oo, oi = s[y].split(o, knobs.outputs, first=knobs.first or None)
    (ho, hi), (wo, wi) = (
        s[y].split(axis, factor) for axis, factor in ((h, knobs.rows), (w, knobs.columns))
    )
    # Results are carried from the tile above, which must be computed directly before.
    tile = (wo, ho) if c.carries else (ho, wo)
    outer = (oo, n, *tile) if knobs.weights_outside else (n, *tile, oo)
    s[y].reorder(*outer, *part, oi, hi, wi, b, k)
    s[y].pragma(part[0] if part else oi, env.dma_copy)
    product.place_results(s, outer[-1], env, knobs.copies_of_results, knobs.added_copies)
    product.place_constants(s, None if knobs.in_turn else oo, env)
    for conv in product.sums:
        n, o, h, w, b, k = s[conv].op.axis
        ci, dy, dx, *term, ki = s[conv].reduce_axis
        co, ci = s[conv].split(ci, knobs.inputs)
        do, dy = s[conv].split(dy, knobs.kernel_rows)
        s[conv].reorder(co, do, n, o, ci, dy, dx, *term, h, w, b, k, ki)
        s[conv].tensorize(b, env.gemm)
        step = s[conv].fuse(co, do)
    copies = c.copies_of_image(knobs), c.copies_of_weights(knobs)
    at = None if c.is_whole(knobs) else step
    product.place_operands(s, tile[-1], oo, at, copies, env, keeps_x=knobs.first > 0)
    if len(product.sums) > 1:
        _sum_phases_first(s, product)
    if c.carries:
        _carry(s, product, wo, knobs)
    return s, product.args


def _sum_phases_first(s: te.Schedule, product: Product) -> None:
    """Compute all sums before ALU operations on them. The phase that maxima replace is last: only
    its accumulators must wait until an earlier tile has been stored.
    """
    sums = [*product.sums, *(rows.sums for rows in product.rows)]
    # A window begins with the phase that its maximum replaces.
    ordered = sorted((s[tensor] for tensor in sums), key=s.stages.index)
    own, last = ordered[: len(ordered) // len(product.sums)], ordered[-1]
    operations = {*product.epilogue.stages, *(rows.total for rows in product.rows)}
    early = [stage for stage in s.stages[: s.stages.index(last)] if stage.tensor in operations]
    for stage in reversed(early):
        stage.after(last)
    for stage in own:
        stage.after(last)
        last = stage


def _carry(s: te.Schedule, product: Product, column: IterVar, knobs: Tiling) -> None:
    """Compute each row of results once per ``column`` of tiles, and carry shared rows."""
    sums = list(product.sums)
    for rows in product.rows:
        sums += [rows.sums, rows.total]
    for tensor in (product.x_buf, *sums, *product.epilogue.stages):
        s[tensor].store_at(column)
    for tensor in (*sums, *product.epilogue.carried):
        s[tensor].carry(tensor.op.axis[-4])
    # Two tiles read its last row while GEMM computes the next one.
    for tensor in product.epilogue.kept:
        s[tensor].double_buffer(2 * knobs.copies_of_results)


def expression(c: Conv2d, env: Environment, steps: tuple[int, int] = (1, 1)) -> Product:
    """The convolution as a sum of products for GEMM, and its epilogue. If it is pooled, the results
    are separate tensors for each position modulo ``steps`` (rows, columns).
    """
    acc = env.acc_dtype
    x = te.placeholder(
        (c.batch, c.inputs, c.height, c.width, env.BATCH, env.BLOCK_IN), "x", env.inp_dtype
    )
    x_buf = _rows_that_are_read(x, c)
    tiles = (c.outputs, c.inputs, c.kernel[0], c.weights_per_row, env.BLOCK_OUT, env.BLOCK_IN)
    w, w_buf = weight_operand(tiles, "w", c.int4_weights, env)

    def summed(row: int, column: int) -> Tensor:
        """The sums of one phase, to which row sums are added."""
        ci, dy, dx, ki = reduce_axes(ci=c.inputs, dy=c.kernel[0], dx=c.kernel[1], ki=env.BLOCK_IN)
        term = term_axis(c.terms)
        own = (ci, dy, dx, *term, ki)
        name = "" if steps == (1, 1) else f"{row}{column}"
        height, width = (
            -(-(size - first) // step)
            for size, first, step in zip(c.image, (row, column), steps, strict=True)
        )

        def pixel(i: Sequence[Expr], at: Sequence[IterVar]) -> Expr:
            n, h, w, b = i
            ci, dy, dx, *_, ki = at
            h, w = h * steps[0] + row, w * steps[1] + column
            y = h * (c.strides[0] // c.row_step) + dy * c.dilations[0]
            return x_buf[n, ci, y, w * c.strides[1] + dx * c.dilations[1], b, ki]

        conv = te.compute(
            (c.batch, c.outputs, height, width, env.BATCH, env.BLOCK_OUT),
            lambda n, o, h, w, b, k: te.sum(
                pixel((n, h, w, b), own).astype(acc)
                * w_buf[o, ci, dy, of_term(dx, c.terms, term), k, ki].astype(acc),
                axis=list(own),
            ),
            f"conv{name}",
        )
        axes.append(own)
        sums.append(conv)
        if not c.row_sums:
            return conv
        rows.append(RowSums.added(conv, 1, pixel, own, env, rows[0] if rows else None, name))
        return rows[-1].total

    axes, sums, rows = list[tuple[IterVar, ...]](), list[Tensor](), list[RowSums]()
    places = [(0, 0)] if c.pooling is None else c.pooling.phases(steps)
    totals = {
        (row, column): summed(row, column)
        for row, column in places
        if row < c.image[0] and column < c.image[1]
    }
    end = epilogue(
        next(iter(totals.values())),
        (c.outputs,),
        lambda n, o, h, w: (o,),
        c.requantize,
        env,
        pooling=c.pooling,
        phases=Phases(c.image, steps, totals),
    )
    return Product(x, w, x_buf, w_buf, axes[0], sums[0], end, rows, sums)


def _rows_that_are_read(x: Tensor, c: Conv2d) -> Tensor:
    """The padded input, without the rows that no output reads."""
    if c.row_step == 1:
        return padded(x, c.pads, c.pad_value, "x_buf")
    batch, inputs, _, *row = x.shape
    return te.compute(
        (batch, inputs, c.output_height, *row),
        lambda n, o, h, w, b, k: x(n, o, h * c.row_step, w, b, k),
        "x_buf",
    )
