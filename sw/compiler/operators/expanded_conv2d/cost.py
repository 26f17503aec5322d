"""Cycles of a fused expansion's schedule: walks its tiles through the cost model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import inf

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.tuner.buffer_copies import BufferCopies
from amaranth_vta.sw.compiler.tuner.cost_model import Estimate, Pipeline, Task
from amaranth_vta.sw.compiler.tuner.formula import TILE_CYCLES
from amaranth_vta.sw.compiler.tuner.tiles import cut, even_tiles, parts

from .sizes import ExpandedConv2dKnobs, ExpandedSizes, constants, fits, tile_sizes, weights_of

# Tiles from a channel tile's expansion to its filter.
_AHEAD = 3


def estimated(
    workload: ExpandedSizes, config: Config, knobs: ExpandedConv2dKnobs, limit: float = inf
) -> Estimate:
    """Estimate a schedule by walking all its tiles through the cost model; the walk stops once the
    schedule is certain to take at least ``limit`` cycles.
    """
    return _Tiles(workload, config, knobs).estimate(limit)


def candidates(workload: ExpandedSizes, config: Config) -> list[tuple[float, ExpandedConv2dKnobs]]:
    """Knobs whose tiles fit the scratchpads, the best by a rough estimate first."""
    b = workload.depthwise.group
    found = []
    for rows, columns, copies, whole in product(
        even_tiles(b.output_height), even_tiles(b.output_width), (2, 1), (True, False)
    ):
        knobs = ExpandedConv2dKnobs(rows, columns, copies, whole)
        if fits(workload, config, knobs):
            found.append((_rough(workload, config, knobs), knobs))
    return sorted(found, key=lambda item: item[0])


def _rough(workload: ExpandedSizes, config: Config, knobs: ExpandedConv2dKnobs) -> float:
    """Estimated cycles, assuming equal tiles."""
    a, d = workload.expansion, workload.depthwise
    size = tile_sizes(workload, knobs.rows, knobs.columns)
    tiles = parts(d.group.output_height, knobs.rows) * parts(d.group.output_width, knobs.columns)
    vectors = a.requantize.operations * size.expanded, d.group.requantize.operations * size.results
    steps = [config.lane_columns * operations for operations in vectors]
    products = a.products * size.expanded, d.products * size.results
    tile = max(sum(products), sum(steps)) + TILE_CYCLES
    image = a.inputs * size.expanded * config.inp.element_bytes / config.bus_bytes
    weights = a.outputs * weights_of(a, d)[0] * config.wgt.element_bytes / config.bus_bytes
    turns = 1 if knobs.whole_weights else tiles * a.batch
    waits = image if knobs.image_copies == 1 else 0
    moved = a.outputs * size.results * config.out.element_bytes / config.bus_bytes
    begin = image + (weights if knobs.whole_weights else weights / a.outputs)
    busy = max(a.outputs * tile + waits, image + moved + turns / tiles * weights)
    return float(tiles * a.batch * busy + begin)


@dataclass(frozen=True)
class _Tile:
    """An output tile of ``rows`` and ``columns``, and the size of the image region it reads."""

    rows: int
    columns: int
    image_rows: int
    image_columns: int

    @property
    def results(self) -> int:
        return self.rows * self.columns

    @property
    def expanded(self) -> int:
        return self.image_rows * self.image_columns


class _Tiles:
    """The output tiles in schedule order, as tasks of the cost model."""

    def __init__(self, workload: ExpandedSizes, config: Config, knobs: ExpandedConv2dKnobs) -> None:
        self.a, self.d = workload.expansion, workload.depthwise
        self.knobs, self.config = knobs, config
        self.pipeline = Pipeline(config)
        self.image = BufferCopies(self.pipeline, knobs.image_copies)
        self.weights = BufferCopies(self.pipeline, 2, workload.hidden_bytes(config))
        self.weight_bytes, self.shared_bytes = (
            tiles * config.wgt.element_bytes for tiles in weights_of(self.a, self.d)
        )
        self.constants = constants(self.a, self.d)
        # Latest tasks, with None before the first: forwards, stores, and the last ALU operations of
        # each step.
        self.forwards: list[Task | None] = [None] * 2
        self.stores: list[Task | None] = [None] * 2
        self.requantized: list[Task | None] = [None] * 2
        # The tile that is expanded but not yet forwarded, and its ALU operations.
        self.waiting: tuple[_Tile, Task] | None = None

    def estimate(self, limit: float) -> Estimate:
        return self.pipeline.estimate(self._schedule(), limit, self._products())

    def _products(self) -> int:
        """Cycles of GEMM to expand and sum all tiles."""
        a, b, products = self.a, self.d.group, 0
        rows, columns = (
            cut(b.output_height, self.knobs.rows),
            cut(b.output_width, self.knobs.columns),
        )
        for height, width in product(rows, columns):
            tile = _Tile(height, width, *self._image(height, width))
            products += tile.expanded * a.products + tile.results * self.d.products
        return a.batch * a.outputs * products

    def _schedule(self) -> Iterator[None]:
        """Add the tasks of one step at a time: expand a tile and sum an earlier one."""
        a, b, knobs = self.a, self.d.group, self.knobs
        self.pipeline.load_for_compute(self.constants * self.config.acc.element_bytes)
        if self.shared_bytes:
            self.pipeline.load(1, self.shared_bytes)
        if knobs.whole_weights:
            self.weights.load(None, 1, a.outputs * self.weight_bytes)
        before: list[_Tile] = []
        rows, columns = cut(b.output_height, knobs.rows), cut(b.output_width, knobs.columns)
        for _, height, width in product(range(a.batch), rows, columns):
            tile = _Tile(height, width, *self._image(height, width))
            self.image.load(None, *self._image_rows(tile))
            for _ in range(a.outputs):
                self._step(tile, before.pop(0) if len(before) == _AHEAD else None)
                before.append(tile)
                yield
        for tile in before:
            self._step(None, tile)
            yield

    def _image(self, rows: int, columns: int) -> tuple[int, int]:
        b = self.d.group
        return min(b.input_rows(rows), b.height), min(b.input_columns(columns), b.width)

    def _image_rows(self, tile: _Tile) -> tuple[int, int]:
        """Number of contiguous rows in DRAM that hold an image tile, and bytes per row."""
        rows, columns = tile.image_rows, tile.image_columns
        if columns == self.a.width:
            rows, columns = 1, rows * columns
        return self.a.inputs * rows, columns * self.config.inp.element_bytes

    def _step(self, expanded: _Tile | None, summed: _Tile | None) -> None:
        """Expand a tile and sum an earlier one, in the bank in which the ALU worked two steps
        earlier.
        """
        pipeline, free = self.pipeline, self.requantized[-2]
        gemm = alu = sums = None
        if summed is not None:
            cycles = summed.results * self.d.products
            gemm = sums = pipeline.gemm(cycles, [self.forwards[-2], free, self.stores[-2]])
        if expanded is not None:
            gemm = self._expand(expanded, [free, self.forwards[-1]])
        if summed is not None:
            alu = pipeline.alu(summed.results, [gemm], self.d.group.requantize.operations)
        last, waiting, self.waiting = alu, self.waiting, None
        if expanded is not None:
            last = pipeline.alu(expanded.expanded, [gemm], self.a.requantize.operations)
            self.waiting = expanded, last
        self.requantized.append(last)
        if waiting is not None:
            self._forward(waiting[0], [waiting[1], sums])
        if summed is not None:
            self._store(summed, alu)

    def _expand(self, tile: _Tile, after: list[Task | None]) -> Task:
        if not self.knobs.whole_weights:
            self.weights.load(None, 1, self.weight_bytes)
        gemm = self.pipeline.gemm(
            tile.expanded * self.a.products, [self.image.loaded, self.weights.loaded, *after]
        )
        self.image.use(gemm)
        self.weights.use(gemm)
        return gemm

    def _forward(self, tile: _Tile, after: list[Task | None]) -> None:
        b = self.d.group
        padded = b.input_rows(tile.rows) * b.input_columns(tile.columns)
        self.forwards.append(self.pipeline.forward(padded, after))

    def _store(self, tile: _Tile, alu: Task | None) -> None:
        rows, columns = tile.rows, tile.columns
        if columns == self.d.group.output_width:
            rows, columns = 1, rows * columns
        self.stores.append(
            self.pipeline.store(rows, columns * self.config.out.element_bytes, [alu])
        )
