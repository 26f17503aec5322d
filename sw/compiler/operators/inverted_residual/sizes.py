"""Sizes and tiles of a fused inverted residual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.expanded_conv2d.sizes import (
    ExpandedSizes,
    constants,
    tile_sizes,
    weights_of,
)


@dataclass(frozen=True)
class InvertedResidualSizes:
    """A 1×1 convolution, ``projection``, of all result channels of ``expanded``. The addition of
    another tensor may follow.
    """

    expanded: ExpandedSizes
    projection: Conv2d

    @property
    def extents(self) -> Mapping[int, int]:
        return {-4: self.projection.output_height}

    def part(self, axis: int, extent: int) -> Self:
        expanded, projection = self.expanded.part(axis, extent), self.projection.part(axis, extent)
        return replace(self, expanded=expanded, projection=projection)

    def hidden_bytes(self, config: Config) -> float:
        """Bytes of the first weights that a preceding layer can prefetch."""
        return self.expanded.hidden_bytes(config) + self.projection.hidden_bytes(config)


@dataclass(frozen=True)
class InvertedResidualKnobs:
    """``rows`` and ``columns`` of an output tile, which has all channels; ``image_copies`` image
    tiles are held at a time. All weights are loaded at the start.

    The schedule loops over channel tiles: expand the image, filter it, add its contribution to the
    projection. It is software-pipelined: an iteration projects one channel tile, filters the second
    after it and expands the fourth, each from data forwarded two iterations earlier. Expansions and
    filters of an iteration share one accumulator bank, alternating between iterations. A tile's
    final sums are requantized in the following iteration, in the bank that GEMM then leaves free:
    with an even number of iterations per tile always the same bank.
    """

    rows: int
    columns: int
    image_copies: int = 2


def results_bank(workload: InvertedResidualSizes) -> int | None:
    """Bank of the projection's sums; None if tiles alternate between banks."""
    return None if workload.expanded.expansion.outputs % 2 else 1


def added_copies(workload: InvertedResidualSizes) -> int:
    """Accumulator copies of the addition's other operand."""
    return 1 if results_bank(workload) is not None else 2


def fits(workload: InvertedResidualSizes, config: Config, knobs: InvertedResidualKnobs) -> bool:
    """Whether the tiles fit the scratchpads."""
    expanded, c = workload.expanded, workload.projection
    a = expanded.expansion
    size = tile_sizes(expanded, knobs.rows, knobs.columns)
    results = c.outputs * size.results
    image = knobs.image_copies * a.inputs * size.expanded
    forwarded = 2 * size.padded + 2 * size.results
    each, shared = weights_of(expanded)
    weights = a.outputs * (each + c.outputs * c.terms) + shared
    kept = constants(expanded) + c.requantize.constants * c.outputs + c.requantize.shared
    held = 1 if results_bank(workload) is None else 2
    if c.addition is not None:
        # The other operand is loaded once the tile is summed, and so is an identity matrix.
        held += c.requantize.accumulators - 1
        image, weights = image + results, weights + 1
    return (
        image + forwarded <= config.inp.depth
        and weights <= config.wgt.depth
        and held * results + size.expanded + size.results + kept <= config.acc.depth // 2
    )
