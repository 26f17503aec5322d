"""Sizes of a two-dimensional convolution and of its tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import (
    Requantization,
    Step,
    followed_by,
)
from amaranth_vta.sw.compiler.operators.building_blocks.pooling import Pooling
from amaranth_vta.sw.compiler.operators.building_blocks.residual import Addition
from amaranth_vta.sw.compiler.operators.building_blocks.window import SlidingWindow
from amaranth_vta.sw.compiler.tuner.tiled_product import TiledProduct, TileSizes


@dataclass(frozen=True)
class Conv2dSizes(SlidingWindow, TiledProduct):
    """Sizes of a convolution. ``batch``, ``inputs`` and ``outputs`` count tiles of BATCH images,
    BLOCK_IN and BLOCK_OUT channels; ``height`` and ``width`` of the input are in pixels; ``pads``
    are rows and columns of ``pad_value`` at the top, left, bottom and right. Each weight is the sum
    of ``terms`` values of wgt_dtype, for weights that need more bits, or with ``int4_weights`` one
    int4 value (extension WGT_4BIT). With ``row_sums`` a weighted
    sum of a pixel's inputs is added to all of its results (see `RowSums`). A ``pooling`` may be
    fused; ``output_height`` and ``output_width`` are then the size after it.
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

    keeps_images = True

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
        return replace(self, requantize=self.requantize.without_parameters())

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

    @property
    def pooled_operations(self) -> int:
        """ALU micro-ops per vector of maxima."""
        if self.pooling is None:
            return 0
        return self.pooling.operations + self.requantize.operations * self.pools_sums

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
        return tile.groups * tile.inputs * rows, self.input_columns(tile.columns)

    def image_in_dram(self, tile: TileSizes) -> tuple[int, int]:
        rows = min(self.input_rows(tile.rows, tile.kernel_rows), self.height)
        columns = min(self.input_columns(tile.columns), self.width)
        if columns == self.width and self.row_step == 1 and not any(self.pads):
            rows, columns = 1, rows * columns
        return tile.groups * tile.inputs * rows, columns

    def accumulators(self, tile: TileSizes) -> int:
        if self.pooling is None:
            return super().accumulators(tile)
        rows = self.image_rows(tile.rows) + self.pooling.rows_without_carry
        columns = self.image_columns(tile.columns)
        pixels, vectors = tile.channels * rows * columns, self.vectors(tile)
        if self.pools_sums:
            results = pixels + self.requantize.accumulators * vectors
        else:
            results = self.requantize.accumulators * pixels + vectors
        if self.pooling.carries:
            # Carried results have twice as many copies.
            width = tile.columns if self.pooling.columns_first else columns
            times = 1 + self.pooling.columns_first
            results = results + times * tile.channels * rows * width
        return results + self.row_sums * rows * columns
