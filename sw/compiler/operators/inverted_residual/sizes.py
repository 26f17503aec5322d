"""Sizes and tiles of a fused inverted residual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Self

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.nest.ir import carried_slots
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.expanded_conv2d.sizes import (
    ExpandedSizes,
    constants,
    weights_of,
)
from amaranth_vta.sw.compiler.operators.grouped_conv2d import GroupedConv2d
from amaranth_vta.sw.compiler.tuner.tiles import cut

# Maximum number of parts in which a tile's sums are requantized.
_PARTS = 6
# Iterations from the computation of a channel tile until its forwarded results are read.
FORWARDED = 2


@dataclass(frozen=True)
class InvertedResidualSizes:
    """A 1×1 convolution, ``projection``, of all result channels of ``expanded``: of a depthwise
    convolution with an expansion, or of one without. The addition of another tensor may follow.
    """

    expanded: ExpandedSizes | GroupedConv2d
    projection: Conv2d

    @property
    def expansion(self) -> Conv2d | None:
        return self.expanded.expansion if isinstance(self.expanded, ExpandedSizes) else None

    @property
    def depthwise(self) -> GroupedConv2d:
        one = self.expanded
        return one.depthwise if isinstance(one, ExpandedSizes) else one

    @property
    def rows_shared(self) -> int:
        """Rows of the padded expansion that two successive tiles read."""
        return self.expanded.rows_shared if isinstance(self.expanded, ExpandedSizes) else 0

    @property
    def constants(self) -> int:
        """Number of accumulators that hold constants."""
        return constants(self.expansion, self.depthwise, self.projection)

    @property
    def filtered_at(self) -> int:
        """Iterations from the first sums of a channel tile to its depthwise filter."""
        return 0 if self.expansion is None else FORWARDED

    @property
    def projected_at(self) -> int:
        """Iterations from the first sums of a channel tile to its projection."""
        return self.filtered_at + FORWARDED

    @property
    def extents(self) -> Mapping[int, int]:
        return {-4: self.projection.output_height}

    def part(self, axis: int, extent: int) -> Self:
        expanded, projection = self.expanded.part(axis, extent), self.projection.part(axis, extent)
        return replace(self, expanded=expanded, projection=projection)

    def hidden_bytes(self, config: Config) -> float:
        """Bytes of the first weights that a preceding layer can prefetch."""
        if (self.expansion or self.depthwise.group).is_first:
            return 0.0
        return self.expanded.hidden_bytes(config) + self.projection.hidden_bytes(config)


@dataclass(frozen=True)
class InvertedResidualKnobs:
    """``rows`` and ``columns`` of an output tile, which has all channels; ``image_copies`` image
    tiles are held at a time. All weights are loaded at the start.

    The schedule loops over channel tiles: expand the image, filter it, add its contribution to the
    projection. It is software-pipelined: an iteration projects one channel tile, filters the second
    after it and expands the fourth, each from data forwarded two iterations earlier. Expansions and
    filters of an iteration share one accumulator bank, alternating between iterations. A tile's
    final sums are requantized in the following iterations in parts (`epilogue_parts`), in the bank
    that GEMM leaves free in every second one: with an even number of iterations per tile always the
    same bank. Without an expansion, an iteration loads and filters a channel tile, whose projection
    follows two iterations later; an image tile then has one channel tile.

    If the schedule ``carries`` rows, a tile expands only rows that the tile above has not expanded.
    The rows that both read are forwarded twice, also to where the tile below reads them.

    GEMM projects, filters, then expands. If it ``expands_first``, it filters next and projects
    last: the ALU has then left the bank of the projection's sums, but expansions need four copies.
    """

    rows: int
    columns: int
    image_copies: int = 2
    carries: bool = False
    expands_first: bool = False


@dataclass(frozen=True)
class RowTile:
    """A tile of ``rows`` output rows: it expands ``image_rows`` rows of the image, and forwards
    ``padded_rows``, padding and the rows written for the tile below included.
    """

    rows: int
    image_rows: int
    padded_rows: int


def row_tiles(workload: InvertedResidualSizes, knobs: InvertedResidualKnobs) -> tuple[RowTile, ...]:
    """The tiles of a column of tiles, from the top."""
    shared = workload.rows_shared if knobs.carries else None
    return _row_tiles(workload.depthwise.group, knobs.rows, shared)


@cache
def _row_tiles(b: Conv2d, most: int, shared: int | None) -> tuple[RowTile, ...]:
    """Tiles of at most ``most`` rows; each carries ``shared`` rows to the next, None for none."""
    tiles, found = cut(b.output_height, most), list[RowTile]()
    if shared is None:
        for rows in tiles:
            read = b.input_rows(rows)
            found.append(RowTile(rows, min(read, b.height), read))
        return tuple(found)
    known = 0
    for number, rows in enumerate(tiles):
        end = number * most * b.strides[0] + b.input_rows(rows)
        low, high = (min(max(row - b.pads[0], 0), b.height) for row in (known, end))
        again = shared if number + 1 < len(tiles) else 0
        found.append(RowTile(rows, high - low, end - known + again))
        known = end
    return tuple(found)


def can_carry(workload: InvertedResidualSizes, knobs: InvertedResidualKnobs) -> bool:
    """Whether tiles can carry rows: each expands some, and as many as the tile below shares."""
    b, shared = workload.depthwise.group, workload.rows_shared
    return (
        0 < shared <= knobs.rows * b.strides[0]
        and knobs.rows < b.output_height
        and all(tile.image_rows for tile in row_tiles(workload, knobs))
    )


def places_of_expansions(workload: InvertedResidualSizes, knobs: InvertedResidualKnobs) -> int:
    """Number of places at which tiles begin in each of the two copies of forwarded expansions."""
    if not knobs.carries:
        return 1
    rows = workload.depthwise.group.input_rows(knobs.rows)
    return carried_slots(2, workload.projection.inputs, rows, workload.rows_shared)


def _forwarded(workload: InvertedResidualSizes, knobs: InvertedResidualKnobs) -> int:
    """Vectors of input scratchpad for forwarded expansions."""
    b, shared = workload.depthwise.group, workload.rows_shared
    below = (places_of_expansions(workload, knobs) - 1) * shared
    return 2 * (below + b.input_rows(knobs.rows)) * b.input_columns(knobs.columns)


def results_bank(workload: InvertedResidualSizes) -> int | None:
    """Bank of the projection's sums; None if tiles alternate between banks."""
    return None if workload.projection.inputs % 2 else 1


def added_copies(workload: InvertedResidualSizes) -> int:
    """Accumulator copies of the addition's other operand."""
    return 1 if results_bank(workload) is not None else 2


def epilogue_parts(workload: InvertedResidualSizes, knobs: InvertedResidualKnobs) -> int:
    """Parts in which a tile's sums are requantized and stored, one in every second iteration."""
    iterations = workload.projection.inputs
    if knobs.image_copies == 1:
        # Compute retires in order: a part delays the token of the products in the next iteration.
        # That must not be the last iteration that reads the image, which waits to be overwritten.
        iterations -= workload.projected_at
    return min(max(iterations // 2, 1), _PARTS)


def expansion_copies(knobs: InvertedResidualKnobs) -> int:
    """Accumulator copies of the expansion."""
    return 4 if knobs.expands_first else 2


def held_weights(workload: InvertedResidualSizes) -> int:
    """Weight tiles, including an identity matrix for the addition's other operand."""
    c = workload.projection
    each, shared = weights_of(workload.expansion, workload.depthwise)
    return c.inputs * (each + c.outputs * c.terms) + shared + (c.addition is not None)


def fits(workload: InvertedResidualSizes, config: Config, knobs: InvertedResidualKnobs) -> bool:
    """Whether the tiles fit the scratchpads."""
    if knobs.carries and not can_carry(workload, knobs):
        return False
    a, b, c = workload.expansion, workload.depthwise.group, workload.projection
    filtered = knobs.rows * knobs.columns
    results = c.outputs * filtered
    if a is None:
        expansions, forwarded = 0, 2 * filtered
        image = knobs.image_copies * b.input_rows(knobs.rows) * b.input_columns(knobs.columns)
    else:
        columns = min(b.input_columns(knobs.columns), b.width)
        expansion = max(tile.image_rows for tile in row_tiles(workload, knobs)) * columns
        expansions = expansion_copies(knobs) // 2 * expansion
        image = knobs.image_copies * a.inputs * expansion
        forwarded = _forwarded(workload, knobs) + 2 * filtered
    held = 1 if results_bank(workload) is None else 2
    if c.addition is not None:
        # The other operand is loaded once the tile is summed, and so is an identity matrix.
        held += c.requantize.accumulators - 1
        image += results
    return (
        image + forwarded <= config.inp.depth
        and held_weights(workload) <= config.wgt.depth
        and held * results + expansions + filtered + workload.constants <= config.acc.depth // 2
    )
