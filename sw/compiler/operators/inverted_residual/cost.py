"""Cycles of a fused inverted residual's schedule: walks its tiles through the cost model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.operators.expanded_conv2d.sizes import (
    constants,
    tile_sizes,
    weights_of,
)
from amaranth_vta.sw.compiler.tuner.cost_model import BufferCopies, Estimate, Pipeline, Task
from amaranth_vta.sw.compiler.tuner.formula import TILE_CYCLES
from amaranth_vta.sw.compiler.tuner.tiles import cut, even_tiles, parts

from .sizes import InvertedResidualKnobs, InvertedResidualSizes, added_copies, fits

# Iterations from a channel tile's expansion to its depthwise filter, and to its projection.
_FILTERED, _PROJECTED = 2, 4


def estimated(
    workload: InvertedResidualSizes, config: Config, knobs: InvertedResidualKnobs
) -> Estimate:
    """Estimate a schedule by walking all its tiles through the cost model."""
    return _Tiles(workload, config, knobs).estimate()


def candidates(
    workload: InvertedResidualSizes, config: Config
) -> list[tuple[float, InvertedResidualKnobs]]:
    """Knobs whose tiles fit the scratchpads, the best by a rough estimate first."""
    b = workload.expanded.depthwise.group
    found = []
    for rows, columns, copies in product(
        even_tiles(b.output_height), even_tiles(b.output_width), (2, 1)
    ):
        knobs = InvertedResidualKnobs(rows, columns, copies)
        if fits(workload, config, knobs):
            found.append((_rough(workload, config, knobs), knobs))
    return sorted(found, key=lambda item: item[0])


def _rough(workload: InvertedResidualSizes, config: Config, knobs: InvertedResidualKnobs) -> float:
    """Estimated cycles, assuming equal tiles."""
    a, d, c = workload.expanded.expansion, workload.expanded.depthwise, workload.projection
    b = d.group
    size = tile_sizes(workload.expanded, knobs.rows, knobs.columns)
    tiles = parts(b.output_height, knobs.rows) * parts(b.output_width, knobs.columns) * a.batch
    results = c.outputs * size.results
    gemm = a.inputs * a.terms * size.expanded + d.products * size.results + c.terms * results
    alu = a.requantize.operations * size.expanded + b.requantize.operations * size.results
    alu *= config.lane_columns
    forwarded = size.padded + size.results
    iteration = max(gemm, alu, forwarded) + TILE_CYCLES
    image = a.inputs * size.expanded if knobs.image_copies == 1 else 0
    return float(tiles * (a.outputs * iteration + image))


@dataclass(frozen=True)
class _Tile:
    """An output tile of ``rows`` and ``columns``, the size of the image region it reads, and
    whether its channel tile is the first or the ``last`` one.
    """

    rows: int
    columns: int
    image_rows: int
    image_columns: int
    first: bool
    last: bool

    @property
    def results(self) -> int:
        return self.rows * self.columns

    @property
    def expanded(self) -> int:
        return self.image_rows * self.image_columns


class _Tiles:
    """The output tiles in schedule order, as tasks of the cost model."""

    def __init__(
        self, workload: InvertedResidualSizes, config: Config, knobs: InvertedResidualKnobs
    ) -> None:
        self.workload, self.knobs, self.config = workload, knobs, config
        self.a, self.d = workload.expanded.expansion, workload.expanded.depthwise
        self.c = workload.projection
        self.pipeline = Pipeline(config)
        self.image = BufferCopies(self.pipeline, knobs.image_copies)
        self.added = BufferCopies(self.pipeline, 1)
        self.weights = BufferCopies(self.pipeline, 1, workload.hidden_bytes(config))
        # Latest tasks, with None before the first. By iteration: forwards of expansions, forwards
        # of filters, last ALU operations; by tile: stores.
        self.expansions: list[Task | None] = [None] * 2
        self.filtered: list[Task | None] = [None] * 2
        self.requantized: list[Task | None] = [None] * 2
        self.stores: list[Task | None] = [None] * 2

    def estimate(self) -> Estimate:
        return self.pipeline.estimate(self._schedule())

    def _schedule(self) -> Iterator[None]:
        """Adds the tasks of one iteration at a time."""
        a, b, c, config = self.a, self.d.group, self.c, self.config
        kept = constants(self.workload.expanded)
        kept += c.requantize.constants * c.outputs + c.requantize.shared
        self.pipeline.load_for_compute(kept * config.acc.element_bytes)
        each, shared = weights_of(self.workload.expanded)
        weights = a.outputs * (each + c.outputs * c.terms) + shared + (c.addition is not None)
        self.weights.load(None, 1, weights * config.wgt.element_bytes)
        before: list[_Tile | None] = [None] * _PROJECTED
        rows = cut(b.output_height, self.knobs.rows)
        columns = cut(b.output_width, self.knobs.columns)
        for _, height, width in product(range(a.batch), rows, columns):
            image = min(b.input_rows(height), b.height), min(b.input_columns(width), b.width)
            for number in range(a.outputs):
                tile = _Tile(height, width, *image, number == 0, number == a.outputs - 1)
                before.append(tile)
                self._iteration(before[-1], before[-1 - _FILTERED], before[-1 - _PROJECTED])
                yield
        for _ in range(_PROJECTED):
            before.append(None)
            self._iteration(before[-1], before[-1 - _FILTERED], before[-1 - _PROJECTED])
            yield

    def _iteration(
        self, expanded: _Tile | None, filtered: _Tile | None, projected: _Tile | None
    ) -> None:
        """Add the iteration that expands, filters and projects these tiles. Its sums reuse the
        accumulators whose contents were forwarded two iterations earlier.
        """
        free = self.requantized[-2]
        gemm = project = sums = None
        if projected is not None:
            stored = self.stores[-2] if projected.first else None
            cycles = self.c.outputs * self.c.terms * projected.results
            gemm = project = self.pipeline.gemm(cycles, [self.filtered[-2], free, stored])
        if filtered is not None:
            cycles = self.d.products * filtered.results
            gemm = sums = self.pipeline.gemm(cycles, [self.expansions[-2], self.filtered[-2], free])
        if expanded is not None:
            gemm = self._expand(expanded, [self.expansions[-2], free])
        alu: Task | None = None
        if filtered is not None:
            alu = self.pipeline.alu(filtered.results, [gemm], self.d.group.requantize.operations)
        self.filtered.append(None)
        if filtered is not None:
            self.filtered[-1] = self.pipeline.forward(filtered.results, [alu, project])
        self.expansions.append(None)
        if expanded is not None:
            b = self.d.group
            padded = b.input_rows(expanded.rows) * b.input_columns(expanded.columns)
            alu = self.pipeline.alu(expanded.expanded, [gemm], self.a.requantize.operations)
            self.expansions[-1] = self.pipeline.forward(padded, [alu, sums])
        if projected is not None and projected.last:
            alu = self._end(projected)
        self.requantized.append(alu)

    def _expand(self, tile: _Tile, after: list[Task | None]) -> Task:
        if tile.first:
            size = tile.image_rows, tile.image_columns
            self.image.load(None, *self._rows(self.a.inputs, *size, self.a.width))
        cycles = self.a.inputs * self.a.terms * tile.expanded
        gemm = self.pipeline.gemm(cycles, [self.image.loaded, self.weights.loaded, *after])
        self.image.use(gemm)
        return gemm

    def _end(self, tile: _Tile) -> Task:
        """Finish the sums of a tile: load the other operand, run the epilogue, and store."""
        results = self.c.outputs * tile.results
        width = self.d.group.output_width
        moved = self._rows(self.c.outputs, tile.rows, tile.columns, width)
        if self.c.addition is not None:
            self.added.load(None, *moved)
            stored = self.stores[-added_copies(self.workload)]
            self.added.use(self.pipeline.gemm(results, [self.added.loaded, stored]))
        alu = self.pipeline.alu(results, [], self.c.requantize.operations)
        self.stores.append(self.pipeline.store(*moved, [alu]))
        return alu

    def _rows(self, channels: int, rows: int, columns: int, width: int) -> tuple[int, int]:
        """Number of contiguous rows in DRAM that hold ``rows`` rows of an image ``width`` pixels
        wide, and bytes per row.
        """
        if columns == width:
            rows, columns = 1, rows * columns
        return channels * rows, columns * self.config.inp.element_bytes
