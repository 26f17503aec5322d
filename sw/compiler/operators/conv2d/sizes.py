"""Sizes of a two-dimensional convolution and of its tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import (
    Requantization,
    Step,
    followed_by,
)
from amaranth_vta.sw.compiler.operators.building_blocks.pooling import Pooling
from amaranth_vta.sw.compiler.operators.building_blocks.residual import Addition
from amaranth_vta.sw.compiler.operators.building_blocks.window import SlidingWindow
from amaranth_vta.sw.compiler.tuner.tiles import parts

# Maximum number of image tiles held at a time, with `Conv2dKnobs.ahead`.
_MAX_COPIES = 8


@dataclass(frozen=True)
class Conv2dSizes(SlidingWindow):
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
    def sum_products(self) -> int:
        """GEMM micro-ops for the row sums of a pixel, one for each weight tile."""
        return self.products * self.row_sums

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

    def held_rows(self, rows: int) -> int:
        """Rows of results that are in accumulators for a tile of ``rows`` rows of the output."""
        # The first tile has no predecessor to carry rows from.
        more = self.pooling.rows_without_carry if self.pooling is not None else 0
        return self.image_rows(rows) + more

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


@dataclass(frozen=True)
class Conv2dKnobs:
    """Tiling of a convolution.

    ``outputs``, ``rows`` and ``columns`` are the output tile that accumulates at a time; ``inputs``
    channel tiles and ``kernel_rows`` of the kernel are loaded at a time. With ``weights_outside``
    each weight tile is stationary while image tiles pass, otherwise each image tile is stationary
    while weights pass. With ``ahead`` the next tiles are prefetched into copies of the buffers.
    With ``in_turn`` the next output tile accumulates while one is requantized and stored; all of
    the bias or parameters are then loaded at the start, and ``result_copies`` of the accumulators
    rotate, half of them in each bank: with four, one tile may accumulate while another is
    requantized and a third is stored. ``image_copies`` image tiles are held at a time if ``ahead``:
    with more than two, weight loads delay fewer tiles. Likewise ``added_copies`` tiles of an
    addition's other operand: with two, the next one is loaded before compute retires the product
    that reads the first.

    The methods also work on arrays: each field may hold a NumPy array with one item per schedule,
    and so do the results.
    """

    outputs: int
    rows: int
    columns: int
    inputs: int
    kernel_rows: int
    weights_outside: bool = True
    ahead: bool = False
    in_turn: bool = False
    result_copies: int = 2
    image_copies: int = 2
    added_copies: int = 1

    def is_whole(self, c: Conv2dSizes) -> bool:
        """Whether all operands of a tile are loaded at once."""
        return (self.inputs >= c.inputs) & (self.kernel_rows >= c.kernel[0])

    def images(self, c: Conv2dSizes) -> int:
        """Number of image tiles, over all images."""
        rows, columns = parts(c.output_height, self.rows), parts(c.output_width, self.columns)
        return c.batch * rows * columns

    def weights_loaded_once(self, c: Conv2dSizes) -> bool:
        outside = self.weights_outside | (self.images(c) == 1)
        return self.is_whole(c) & (self.outputs >= c.outputs) & outside

    def image_loaded_once(self, c: Conv2dSizes) -> bool:
        """Whether the whole image is a single tile that is loaded only once."""
        inside = (self.outputs >= c.outputs) | (self.weights_outside ^ True)
        return self.is_whole(c) & (self.images(c) == 1) & inside

    def copies_of_image(self, c: Conv2dSizes) -> int:
        """Image tiles held at a time."""
        return 1 + (self.image_copies - 1) * (self.ahead & (self.image_loaded_once(c) ^ True))

    def copies_of_weights(self, c: Conv2dSizes) -> int:
        return 1 + (self.ahead & (self.weights_loaded_once(c) ^ True))

    def copies_of_results(self) -> int:
        """Tiles whose accumulators are in use at a time."""
        return 1 + self.in_turn * (self.result_copies - 1)

    def resets(self, c: Conv2dSizes, config: Config) -> bool:
        """Whether accumulators are reset; otherwise the first products overwrite them."""
        return (self.is_whole(c) & bool(config.overwrite)) ^ True

    def image_elements(self, c: Conv2dSizes) -> int:
        """Elements of an image tile."""
        rows = c.rows_read(c.held_rows(self.rows), self.kernel_rows)
        region = rows * c.input_columns(self.columns)
        return self.inputs * region

    def fits(self, c: Conv2dSizes, config: Config) -> bool:
        weights = self.outputs * self.inputs * self.kernel_rows * c.weights_per_row
        vectors = self.outputs * self.rows * self.columns
        pixels = self.outputs * c.held_rows(self.rows) * c.image_columns(self.columns)
        if c.pools_sums:
            results = pixels + c.requantize.accumulators * vectors
        else:
            results = c.requantize.accumulators * pixels + vectors * (c.pooling is not None)
        if c.row_sums:
            results = results + pixels // self.outputs
        if c.pooling is not None and c.pooling.carries:
            # Carried results have twice as many copies.
            width = self.columns if c.pooling.columns_first else c.image_columns(self.columns)
            times = 1 + c.pooling.columns_first
            results = results + times * self.outputs * c.held_rows(self.rows) * width
        added = c.addition is not None
        added_vectors = added * self.added_copies * vectors
        channels = self.outputs + self.in_turn * (c.outputs - self.outputs)
        banks = 1 + self.in_turn
        results = results * self.copies_of_results() // banks
        return (
            (self.copies_of_weights(c) * weights + c.sum_products + added <= config.wgt.depth)
            & (self.copies_of_image(c) * self.image_elements(c) + added_vectors <= config.inp.depth)
            & (
                banks * (results + c.requantize.constants * channels) + c.requantize.shared
                <= config.acc.depth
            )
        )

    def with_more_copies(self, c: Conv2dSizes, config: Config) -> Iterator[Conv2dKnobs]:
        """These knobs, and variants that use the remaining room for more copies: of the image (an
        even number), of an addition's other operand, and, with half-size tiles, of accumulators.
        """
        most = _MAX_COPIES if self.copies_of_image(c) > 1 else self.image_copies
        more = replace(self, added_copies=1 + (c.addition is not None))
        start = more if more.fits(c, config) else self
        for tile in (start, *start._halves()):
            filled = [
                tile_copies
                for copies in range(self.image_copies, most + 1, 2)
                if (tile_copies := replace(tile, image_copies=copies)).fits(c, config)
            ]
            # Of a half-size tile, which already has twice the accumulator copies, only the most
            # image copies.
            yield from filled[tile == self :] if tile is start else filled[-1:]

    def _halves(self) -> Iterator[Conv2dKnobs]:
        """Half-size tiles, with twice as many copies in accumulators."""
        for name in ("columns", "rows", "outputs") if self.in_turn else ():
            size = getattr(self, name)
            if size > 1:
                yield replace(self, result_copies=4, **{name: -(-size // 2)})
