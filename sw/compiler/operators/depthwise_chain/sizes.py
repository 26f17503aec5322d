"""Sizes and tiles of a depthwise convolution fused with 1×1 convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Self

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.nest.ir import carried_slots
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.grouped_conv2d import GroupedConv2d
from amaranth_vta.sw.compiler.tuner.tiles import cut

# Maximum number of parts in which a tile's sums are requantized.
_PARTS = 6
# Copies of the weights of a channel tile, if not all weights are loaded at the start: with two, a
# load would often wait for the products of the previous iteration.
WEIGHT_COPIES = 4


@dataclass(frozen=True)
class DepthwiseChainSizes:
    """A ``depthwise`` convolution whose groups are one channel tile each; ``expansion``, the 1×1
    convolution that computes its input; and ``projection``, a 1×1 convolution of all its results,
    which the addition of another tensor may follow. At least one of the two is not None.
    """

    expansion: Conv2d | None
    depthwise: GroupedConv2d
    projection: Conv2d | None = None

    @property
    def parts(self) -> tuple[Conv2d | GroupedConv2d, ...]:
        """The convolutions, in their order."""
        found = self.expansion, self.depthwise, self.projection
        return tuple(part for part in found if part is not None)

    @property
    def last(self) -> Conv2d:
        """The convolution that computes the results: of a depthwise convolution one group."""
        return self.depthwise.group if self.projection is None else self.projection

    @property
    def rows_shared(self) -> int:
        """Rows of the padded expansion that two successive tiles read."""
        b = self.depthwise.group
        return 0 if self.expansion is None else b.input_rows(1) - b.strides[0]

    @property
    def constants(self) -> int:
        """Number of accumulators that hold constants."""
        found = 0
        for part in self.parts:
            tiles = part.constants if isinstance(part, GroupedConv2d) else part.outputs
            found += part.requantize.constants * tiles + part.requantize.shared
        return found

    @property
    def weights(self) -> tuple[int, int]:
        """Weight tiles per channel tile, and weight tiles that all channel tiles share, including
        an identity matrix for the other operand of an addition.
        """
        a, d, c = self.expansion, self.depthwise, self.projection
        each, shared = 0, 0
        if a is not None:
            each += a.products
        if d.alike:
            shared += d.products
        else:
            each += d.products
        if c is not None:
            each += c.outputs * c.terms
            shared += c.addition is not None
        return each, shared

    @property
    def filtered_after(self) -> int:
        """Iterations from the first sums of a channel tile to its depthwise filter."""
        if self.expansion is None:
            return 0
        return 2 if self.projection is not None else 3

    @property
    def ends_after(self) -> int:
        """Iterations from the first sums of a channel tile to its last sums."""
        return self.filtered_after + (2 if self.projection is not None else 0)

    @property
    def extents(self) -> Mapping[int, int]:
        rows = {-4: self.last.output_height}
        return rows if self.projection is not None else {-6: self.depthwise.groups, **rows}

    def part(self, axis: int, extent: int) -> Self:
        a, c, depthwise = self.expansion, self.projection, self.depthwise.part(axis, extent)
        if a is not None:
            a = replace(a, outputs=depthwise.groups, height=depthwise.group.height)
        if c is not None:
            c = c.part(axis, extent)
        return replace(self, expansion=a, depthwise=depthwise, projection=c)

    def hidden_bytes(self, config: Config) -> float:
        """Bytes of the first weights that a preceding layer can prefetch."""
        if self.parts[0].is_first:
            return 0.0
        return sum(part.hidden_bytes(config) for part in self.parts)


@dataclass(frozen=True)
class DepthwiseChainKnobs:
    """``rows`` and ``columns`` of an output tile, which has all channels of a projection or else
    one channel tile; ``image_copies`` image tiles are held at a time. With ``whole_weights`` all
    weights are loaded at the start; otherwise, possible without a projection, the weights of a
    channel tile are loaded for each of its output tiles.

    The schedule loops over channel tiles: expand the image, filter it, add its contribution to the
    projection. It is software-pipelined: an iteration projects one channel tile, filters the second
    after it and expands the fourth, each from data forwarded two iterations earlier; without a
    projection, it filters one channel tile and expands the third after it. Expansions and filters
    of an iteration share one accumulator bank, alternating between iterations: the ALU requantizes
    them while GEMM computes the sums of the next iteration in the other bank. A projection's final
    sums are requantized in the following iterations in parts (`epilogue_parts`), in the bank that
    GEMM leaves free in every second one: with an even number of iterations per tile always the same
    bank. Without an expansion, an iteration loads and filters a channel tile, whose projection
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
    whole_weights: bool = True


@dataclass(frozen=True)
class RowTile:
    """A tile of ``rows`` output rows: it expands ``image_rows`` rows of the image, and forwards
    ``padded_rows``, padding and the rows written for the tile below included.
    """

    rows: int
    image_rows: int
    padded_rows: int


def row_tiles(workload: DepthwiseChainSizes, knobs: DepthwiseChainKnobs) -> tuple[RowTile, ...]:
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


def can_carry(workload: DepthwiseChainSizes, knobs: DepthwiseChainKnobs) -> bool:
    """Whether tiles can carry rows: each expands some, and as many as the tile below shares."""
    b, shared = workload.depthwise.group, workload.rows_shared
    return (
        0 < shared <= knobs.rows * b.strides[0]
        and knobs.rows < b.output_height
        and all(tile.image_rows for tile in row_tiles(workload, knobs))
    )


def places_of_expansions(workload: DepthwiseChainSizes, knobs: DepthwiseChainKnobs) -> int:
    """Number of places at which tiles begin in each of the two copies of forwarded expansions."""
    if not knobs.carries:
        return 1
    rows = workload.depthwise.group.input_rows(knobs.rows)
    return carried_slots(2, workload.depthwise.groups, rows, workload.rows_shared)


def _forwarded(workload: DepthwiseChainSizes, knobs: DepthwiseChainKnobs) -> int:
    """Vectors of input scratchpad for forwarded expansions."""
    b, shared = workload.depthwise.group, workload.rows_shared
    below = (places_of_expansions(workload, knobs) - 1) * shared
    return 2 * (below + b.input_rows(knobs.rows)) * b.input_columns(knobs.columns)


def results_bank(workload: DepthwiseChainSizes) -> int | None:
    """Bank of the projection's sums; None if tiles alternate between banks."""
    return None if workload.depthwise.groups % 2 else 1


def added_copies(workload: DepthwiseChainSizes) -> int:
    """Accumulator copies of the addition's other operand."""
    return 1 if results_bank(workload) is not None else 2


def epilogue_parts(workload: DepthwiseChainSizes, knobs: DepthwiseChainKnobs) -> int:
    """Parts in which a projection's sums are requantized and stored, one in every second
    iteration.
    """
    if workload.projection is None:
        return 1
    iterations = workload.depthwise.groups
    if knobs.image_copies == 1:
        # Compute retires in order: a part delays the token of the products in the next iteration.
        # That must not be the last iteration that reads the image, which waits to be overwritten.
        iterations -= workload.ends_after
    return min(max(iterations // 2, 1), _PARTS)


def expansion_copies(knobs: DepthwiseChainKnobs) -> int:
    """Accumulator copies of the expansion."""
    return 4 if knobs.expands_first else 2


def held_weights(workload: DepthwiseChainSizes, knobs: DepthwiseChainKnobs) -> int:
    """Weight tiles in the scratchpad."""
    each, shared = workload.weights
    tiles = workload.depthwise.groups if knobs.whole_weights else WEIGHT_COPIES
    return tiles * each + shared


def fits(workload: DepthwiseChainSizes, config: Config, knobs: DepthwiseChainKnobs) -> bool:
    """Whether the tiles fit the scratchpads."""
    if knobs.carries and not can_carry(workload, knobs):
        return False
    a, b, c = workload.expansion, workload.depthwise.group, workload.projection
    filtered = knobs.rows * knobs.columns
    # Vectors of the input scratchpad, and accumulators of a bank.
    if a is None:
        vectors = knobs.image_copies * b.input_rows(knobs.rows) * b.input_columns(knobs.columns)
        sums = filtered
    else:
        columns = min(b.input_columns(knobs.columns), b.width)
        expansion = max(tile.image_rows for tile in row_tiles(workload, knobs)) * columns
        vectors = knobs.image_copies * a.inputs * expansion + _forwarded(workload, knobs)
        sums = filtered + expansion_copies(knobs) // 2 * expansion
    if c is not None:
        vectors += 2 * filtered
        held, results = 1 if results_bank(workload) is None else 2, c.outputs * filtered
        if c.addition is not None:
            # The other operand is loaded once the tile is summed.
            held += c.requantize.accumulators - 1
            vectors += results
        sums += held * results
    return (
        vectors <= config.inp.depth
        and held_weights(workload, knobs) <= config.wgt.depth
        and sums + workload.constants <= config.acc.depth // 2
    )
