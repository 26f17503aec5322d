"""Sums of products as the tuner sees them: the sizes of tiles, and whether they fit.

An operator is a `TiledProduct` if its schedule has this form: output tiles in order, each a sum
over steps of the reduction, then the epilogue of the ALU, then a store. It states its extents and
the sizes of a tile's operands. The fit (`TiledProduct.fits`), the ranking of all tilings
(`product_candidates`) and the walk over tiles (`product_walk`) derive from these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import Requantization

from .cost_model import hidden_bytes
from .tiles import even_tiles, parts


@dataclass(frozen=True)
class TileSizes:
    """Sizes of an output tile: ``outputs`` channel tiles, ``rows`` and ``columns``; ``inputs``
    channel tiles and ``kernel_rows`` are summed in one step.
    """

    outputs: int
    rows: int
    columns: int = 1
    inputs: int = 1
    kernel_rows: int = 1


@dataclass(frozen=True)
class Tiling(TileSizes):
    """Knobs of a `TiledProduct`: the sizes of its largest tiles, and how they overlap.

    With ``weights_outside`` each weight tile is stationary while image tiles pass, otherwise each
    image tile is stationary while weights pass. With ``ahead`` the next tiles are prefetched into
    copies of the buffers. With ``in_turn`` the next output tile accumulates while one is
    requantized and stored; ``result_copies`` of the accumulators then rotate, half of them in each
    bank: with four, one tile may accumulate while another is requantized and a third is stored.
    ``image_copies`` image tiles are held at a time if ``ahead``: with more than two, weight loads
    delay fewer tiles. Likewise ``added_copies`` tiles of an addition's other operand: with two, the
    next one is loaded before compute retires the product that reads the first. Of the weights of a
    step, ``weight_copies`` are held if ``ahead``.

    With ``first``, image tiles are stationary, and the first output tile of each has that many
    channel tiles. Its steps load the image tile, which is kept for the other output tiles: products
    begin before the whole image tile has arrived.

    Fields but ``first`` may hold NumPy arrays with one item per schedule, and so do the results of
    methods.
    """

    weights_outside: bool = True
    ahead: bool = False
    in_turn: bool = False
    result_copies: int = 2
    image_copies: int = 2
    added_copies: int = 1
    weight_copies: int = 2
    first: int = 0

    @property
    def copies_of_results(self) -> int:
        """Tiles whose accumulators are in use at a time."""
        return 1 + self.in_turn * (self.result_copies - 1)

    @property
    def banks(self) -> int:
        """Accumulator banks that tiles alternate between."""
        return 1 + self.in_turn


class TiledProduct(ABC):
    """Base of operators that GEMM computes tile by tile. Methods on tiles also work on arrays of
    sizes. An image is what the products read: of a matrix product the rows of the first factor.
    """

    batch: int
    requantize: Requantization
    int4_weights: bool = False
    # Whether it is the first layer in its launch, so that none of its weights are prefetched.
    is_first: bool = False
    # Whether weighted sums of a pixel's inputs are added to all of its results.
    row_sums: bool = False
    # Whether an image tile may be stationary while weights pass.
    keeps_images: bool = False
    # Whether more copies of operands and results are tried where GEMM waits. They take the room in
    # which the following layer prefetches.
    varies_copies: bool = True

    @property
    def carries(self) -> bool:
        """Whether each row of tiles reads results of the tile above, computed directly before."""
        return False

    @property
    def independent_products(self) -> int:
        """Number of products of these sizes with separate operands."""
        return 1

    @property
    def phases(self) -> int:
        """Number of phases of a transposed convolution, each with its own constants."""
        return 1

    @property
    def parameter_cycles(self) -> int:
        """Cycles of the ALU to change parameters, per channel tile of an output tile."""
        return 0

    @property
    def loads_some_constants(self) -> bool:
        """Whether the constants of several output tiles may be loaded at a time."""
        return False

    @property
    @abstractmethod
    def whole(self) -> TileSizes:
        """The extents: the sizes of a tile that is the whole output of a product."""

    @property
    @abstractmethod
    def weight_loops(self) -> tuple[int, ...]:
        """Loops over the weights of one row of the kernel."""

    @abstractmethod
    def image_tile(self, tile: TileSizes) -> tuple[int, int]:
        """Rows of an image tile in the scratchpad, with padding, and elements of each."""

    @abstractmethod
    def image_in_dram(self, tile: TileSizes) -> tuple[int, int, int]:
        """Blocks of an image tile in DRAM, contiguous rows in each, at one stride, and elements per
        row.
        """

    def results(self, tile: TileSizes) -> tuple[int, int]:
        """Rows and columns of results of a tile."""
        return tile.rows, tile.columns

    def sums(self, tile: TileSizes) -> tuple[int, int]:
        """Rows and columns of sums that the results are computed from."""
        return self.results(tile)

    def results_in_dram(self, tile: TileSizes) -> tuple[int, int, int]:
        """The results of a tile in DRAM, like `image_in_dram`."""
        rows, columns = self.results(tile)
        if tile.columns >= self.whole.columns:
            rows, columns = 1, rows * columns
        return tile.outputs, rows, columns

    def weights(self, tile: TileSizes) -> int:
        """Weight tiles of a step, per channel tile of inputs and of outputs."""
        return tile.kernel_rows * prod(self.weight_loops)

    def held_weights(self, tile: TileSizes) -> int:
        """Weight tiles of a step in the scratchpad."""
        return tile.outputs * tile.inputs * self.weights(tile)

    def weights_in_dram(self, tile: TileSizes) -> tuple[int, int]:
        """Contiguous pieces of the weights of a step in DRAM, and weight tiles in each."""
        pieces, length = tile.outputs * tile.inputs, self.weights(tile)
        if tile.kernel_rows == self.whole.kernel_rows:
            pieces, length = tile.outputs, tile.inputs * length
            if tile.inputs == self.whole.inputs:
                pieces, length = 1, tile.outputs * length
        return pieces, length

    def vectors(self, tile: TileSizes) -> int:
        """Vectors of results of a tile."""
        return tile.outputs * prod(self.results(tile))

    def pixels(self, tile: TileSizes) -> int:
        """Vectors of sums of a tile."""
        return tile.outputs * prod(self.sums(tile))

    def gemm_cycles(self, tile: TileSizes) -> int:
        """GEMM micro-ops of a step."""
        channels = tile.outputs + self.row_sums
        return channels * prod(self.sums(tile)) * tile.inputs * self.weights(tile)

    def pooled_cycles(self, t: Tiling, config: Config) -> Any:
        """Cycles of the ALU per vector of results, for operations after a reduction of the sums and
        for the reduction.
        """
        return 0

    def phases_of_sums(self, tile: TileSizes) -> tuple[int, int, int]:
        """Number of parts in which the sums of a tile are computed sequentially, and rows and
        columns of each. Only the last part waits until an earlier tile has been stored.
        """
        return 1, *self.sums(tile)

    @property
    def operations(self) -> int:
        """ALU micro-ops per vector of sums."""
        return self.requantize.operations + self.row_sums

    def accumulators(self, tile: TileSizes) -> int:
        """Accumulators of a copy of a tile's results."""
        return self.requantize.accumulators * self.pixels(tile) + self.row_sums * prod(
            self.sums(tile)
        )

    def tiles_of_outputs(self) -> list[int]:
        """Candidate sizes of tiles along outputs."""
        return even_tiles(self.whole.outputs)

    @property
    def channels(self) -> int:
        """Channel tiles of results, in all products."""
        return self.independent_products * self.whole.outputs

    @property
    def is_added_to(self) -> bool:
        """Whether another tensor is added to the results."""
        return self.requantize.addition is not None

    def images(self, t: Tiling) -> int:
        """Number of image tiles, over all images."""
        whole = self.whole
        return self.batch * parts(whole.rows, t.rows) * parts(whole.columns, t.columns)

    def blocks(self, t: Tiling) -> int:
        """Number of tiles of output channels, in all products."""
        rest = parts(self.whole.outputs - t.first, t.outputs)
        return self.independent_products * ((t.first > 0) + rest)

    def steps(self, t: Tiling) -> int:
        """Number of steps of the sum."""
        whole = self.whole
        return parts(whole.inputs, t.inputs) * parts(whole.kernel_rows, t.kernel_rows)

    def mean_tile(self, t: Tiling) -> TileSizes:
        """The mean of the sizes of all tiles, fractions included."""
        extents = vars(self.whole).items()
        return TileSizes(**{name: size / parts(size, getattr(t, name)) for name, size in extents})

    def is_whole(self, t: TileSizes) -> bool:
        """Whether all operands of a tile are loaded at once."""
        return (t.inputs >= self.whole.inputs) & (t.kernel_rows >= self.whole.kernel_rows)

    def copies_of_image(self, t: Tiling) -> int:
        """Image tiles of a step held at a time."""
        if t.first:
            return self.steps(t)
        one_block = (t.weights_outside ^ True) | (self.blocks(t) == 1)
        once = self.is_whole(t) & (self.images(t) == 1) & one_block
        return 1 + (t.image_copies - 1) * (t.ahead & (once ^ True))

    def copies_of_weights(self, t: Tiling) -> int:
        """Weight tiles of a step held at a time."""
        one_image = t.weights_outside | (self.images(t) == 1)
        once = self.is_whole(t) & (self.blocks(t) == 1) & one_image
        return 1 + (t.weight_copies - 1) * (t.ahead & (once ^ True))

    def hidden_bytes(self, config: Config) -> float:
        """Bytes of the first weights that a preceding layer can prefetch."""
        if self.is_first:
            return 0.0
        products = self.batch * self.independent_products * self.gemm_cycles(self.whole)
        return hidden_bytes(config, products)

    def prefetched_bytes(self, t: Tiling, config: Config) -> Any:
        """Bytes of the first weights that a preceding layer prefetches, if all copies fit half of
        the scratchpad, since it needs room for its own.
        """
        weights = self.copies_of_weights(t) * self.held_weights(t)
        return np.where(weights <= config.wgt.depth // 2, self.hidden_bytes(config), 0.0)

    def outputs_held(self, t: Tiling, config: Config) -> Any:
        """Channel tiles of outputs whose constants are loaded at a time; 0 if the accumulators are
        too few. With ``in_turn`` all or those of several tiles are loaded, since the constants of
        the next tile must not overwrite the constants with which the ALU requantizes.
        """
        every = np.where(t.in_turn, self.channels, t.outputs)
        results = self.accumulators(t) * t.copies_of_results // t.banks
        left = (config.acc.depth - self.requantize.shared) // t.banks - results
        constants = self.phases * self.requantize.constants
        some: Any = 0
        if self.loads_some_constants and constants:
            most = np.maximum(left // constants // t.outputs, 1)
            tiles = self.blocks(t)
            some = np.where(t.in_turn & (most > 1), -(-tiles // -(-tiles // most)) * t.outputs, 0)
        return np.where(left >= 0, np.where(every * constants <= left, every, some), 0)

    def fits(self, t: Tiling, config: Config) -> bool:
        """Whether the tiles fit the scratchpads."""
        t = replace(t, outputs=t.first or t.outputs)
        added, whole = self.is_added_to, self.whole
        weights = self.copies_of_weights(t) * self.held_weights(t)
        kept = self.row_sums * whole.inputs * self.weights(whole) + added
        images = self.copies_of_image(t) * prod(self.image_tile(t))
        return (
            (weights + kept <= config.wgt.depth)
            & (images + added * t.added_copies * self.vectors(t) <= config.inp.depth)
            & (self.outputs_held(t, config) > 0)
        )
