"""Sizes and tiles of a depthwise convolution fused with a 1×1 expansion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.grouped_conv2d import GroupedConv2d


@dataclass(frozen=True)
class ExpandedSizes:
    """A 1×1 convolution, ``expansion``, and a ``depthwise`` convolution of its results, whose
    groups are one channel tile each: as many groups as the expansion has output tiles.
    """

    expansion: Conv2d
    depthwise: GroupedConv2d

    @property
    def extents(self) -> Mapping[int, int]:
        return {-6: self.depthwise.groups, -4: self.depthwise.group.output_height}

    def part(self, axis: int, extent: int) -> Self:
        depthwise = self.depthwise.part(axis, extent)
        expansion = replace(self.expansion, outputs=depthwise.groups, height=depthwise.group.height)
        return replace(self, expansion=expansion, depthwise=depthwise)

    @property
    def rows_shared(self) -> int:
        """Rows of the padded expansion that two successive tiles read."""
        b = self.depthwise.group
        return b.input_rows(1) - b.strides[0]

    def hidden_bytes(self, config: Config) -> float:
        """Bytes of the first weights that a preceding layer can prefetch."""
        if self.expansion.is_first:
            return 0.0
        return self.expansion.hidden_bytes(config) + self.depthwise.hidden_bytes(config)


@dataclass(frozen=True)
class ExpandedConv2dKnobs:
    """``rows`` and ``columns`` of an output tile, which is one channel tile deep; ``image_copies``
    image tiles are held at a time. With ``whole_weights`` all weights are loaded at the start,
    otherwise the weights of a channel tile are loaded for each of its output tiles.

    Tiles are expanded three tiles ahead, into alternating banks: both sums of an iteration are in
    one bank, and the ALU requantizes them while GEMM computes the sums of the next iteration in the
    other bank.
    """

    rows: int
    columns: int
    image_copies: int = 2
    whole_weights: bool = True


@dataclass(frozen=True)
class TileVectors:
    """Vectors of a tile: ``expanded``, the same ``padded``, and ``results``."""

    expanded: int
    padded: int
    results: int


def tile_sizes(workload: ExpandedSizes, rows: int, columns: int) -> TileVectors:
    """The sizes for an output tile of ``rows`` and ``columns``."""
    b = workload.depthwise.group
    height, width = b.input_rows(rows), b.input_columns(columns)
    return TileVectors(min(height, b.height) * min(width, b.width), height * width, rows * columns)


def constants(*parts: Conv2d | GroupedConv2d | None) -> int:
    """Number of accumulators that hold constants of all ``parts`` that are not None."""
    found = 0
    for part in parts:
        if part is not None:
            tiles = part.constants if isinstance(part, GroupedConv2d) else part.outputs
            found += part.requantize.constants * tiles + part.requantize.shared
    return found


def weights_of(expansion: Conv2d | None, depthwise: GroupedConv2d) -> tuple[int, int]:
    """Weight tiles per channel tile, and weight tiles that all channel tiles share."""
    expanded = 0 if expansion is None else expansion.inputs * expansion.terms
    filters = depthwise.group.kernel[0] * depthwise.weights_per_row
    return (expanded, filters) if depthwise.alike else (expanded + filters, 0)


def fits(workload: ExpandedSizes, config: Config, knobs: ExpandedConv2dKnobs) -> bool:
    """Whether the tiles fit the scratchpads."""
    a = workload.expansion
    size = tile_sizes(workload, knobs.rows, knobs.columns)
    sums = size.expanded + size.results
    tiles = a.outputs if knobs.whole_weights else 2
    weights, shared = weights_of(a, workload.depthwise)
    return (
        knobs.image_copies * a.inputs * size.expanded + 2 * size.padded <= config.inp.depth
        and sums + constants(a, workload.depthwise) <= config.acc.depth // 2
        and tiles * weights + shared <= config.wgt.depth
    )
