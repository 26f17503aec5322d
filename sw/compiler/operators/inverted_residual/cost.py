"""Cycles of a fused inverted residual's schedule: walks its tiles through the cost model."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, lcm, prod

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import Requantization
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.tuner.buffer_copies import BufferCopies
from amaranth_vta.sw.compiler.tuner.cost_model import Estimate, Pipeline, Task
from amaranth_vta.sw.compiler.tuner.formula import TILE_CYCLES
from amaranth_vta.sw.compiler.tuner.tiles import cut, even_tiles, parts

from .sizes import (
    InvertedResidualKnobs,
    InvertedResidualSizes,
    added_copies,
    epilogue_parts,
    fits,
    held_weights,
    places_of_expansions,
    results_bank,
    row_tiles,
)

# Candidates of each kind of schedule to walk; twice as many that neither carry nor expand first.
_WALKS = 6
# Cycles of an ALU instruction in addition to those of its micro-ops.
_ALU_CYCLES = 9


def estimated(
    workload: InvertedResidualSizes,
    config: Config,
    knobs: InvertedResidualKnobs,
    limit: float = inf,
) -> Estimate:
    """Estimate a schedule by walking all its tiles through the cost model; the walk stops once the
    schedule is certain to take at least ``limit`` cycles.
    """
    return _Tiles(workload, config, knobs).estimate(limit)


def candidates(
    workload: InvertedResidualSizes, config: Config
) -> list[tuple[float, InvertedResidualKnobs]]:
    """Knobs whose tiles fit the scratchpads, the best by a rough estimate first."""
    b, found = workload.depthwise.group, []
    # Without an expansion, every iteration loads a part of the image.
    flags, copies_of_image = ((False, True), (2, 1)) if workload.expansion else ((False,), (4, 2))
    for rows, columns, copies, carries, first in product(
        even_tiles(b.output_height), even_tiles(b.output_width), copies_of_image, flags, flags
    ):
        knobs = InvertedResidualKnobs(rows, columns, copies, carries, first)
        if fits(workload, config, knobs):
            found.append((_rough(workload, config, knobs), knobs))
    return sorted(found, key=lambda item: item[0])


def with_each_kind_in_front(
    candidates: Sequence[tuple[float, InvertedResidualKnobs]],
) -> tuple[int, list[tuple[float, InvertedResidualKnobs]]]:
    """``candidates`` with the best of each kind of schedule in front, and the number of these."""
    front, others = list[tuple[float, InvertedResidualKnobs]](), list(candidates)
    for carries, first in product((False, True), repeat=2):
        kind = [item for item in others if _kind(item[1]) == (carries, first)]
        front += kind[: _WALKS if carries or first else 2 * _WALKS]
    chosen = {knobs for _, knobs in front}
    return len(front), front + [item for item in others if item[1] not in chosen]


def _kind(knobs: InvertedResidualKnobs) -> tuple[bool, bool]:
    return knobs.carries, knobs.expands_first


def _rough(workload: InvertedResidualSizes, config: Config, knobs: InvertedResidualKnobs) -> float:
    """Estimated cycles, assuming equal tiles."""
    a, d, c = workload.expansion, workload.depthwise, workload.projection
    b = d.group
    column, columns = row_tiles(workload, knobs), b.input_columns(knobs.columns)
    across = parts(b.output_width, knobs.columns) * b.batch
    # Means over the tiles of a column.
    expanded = sum(tile.image_rows for tile in column) * min(columns, b.width) / len(column)
    padded = sum(tile.padded_rows for tile in column) * columns / len(column)
    filtered = knobs.rows * knobs.columns
    gemm = float((d.products + c.outputs * c.terms) * filtered)
    alu, image = float(b.requantize.operations * filtered), 0.0
    if a is not None:
        gemm += a.inputs * a.terms * expanded
        alu += a.requantize.operations * expanded
        image = a.inputs * expanded if knobs.image_copies == 1 else 0
    iteration = max(gemm, alu * config.lane_columns, padded + filtered) + TILE_CYCLES
    return float(len(column) * across * (c.inputs * iteration + image))


@dataclass(frozen=True)
class _Tile:
    """An output tile of ``rows`` and ``columns``, the size of the image region it expands, the
    ``padded`` vectors that it forwards, and whether its channel tile is the first or the ``last``
    one.
    """

    rows: int
    columns: int
    image_rows: int
    image_columns: int
    padded: int
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
        self.a, self.d, self.c = workload.expansion, workload.depthwise, workload.projection
        self.pipeline = Pipeline(config)
        self.image = BufferCopies(self.pipeline, knobs.image_copies)
        self.added = BufferCopies(self.pipeline, 1)
        self.weights = BufferCopies(self.pipeline, 1, self._prefetched_bytes())
        # Latest tasks, with None before the first. By iteration: forwards of expansions, forwards
        # of filters, last ALU operations; by tile: stores.
        self.expansions: list[Task | None] = [None] * 4
        self.filtered: list[Task | None] = [None] * 2
        self.requantized: list[Task | None] = [None] * 2
        self.parts = epilogue_parts(workload, knobs)
        self.stores: list[Task | None] = [None] * (2 * self.parts)
        # Tiles of which a part is left to requantize and store, by iteration.
        self.unfinished: deque[list[_Tile]] = deque()

    def estimate(self, limit: float) -> Estimate:
        return self.pipeline.estimate(self._schedule(), limit, self._products())

    def _products(self) -> int:
        """Cycles of GEMM to expand, filter and project all tiles."""
        a, b, c = self.a, self.d.group, self.c
        expanded = sum(tile.image_rows for tile in row_tiles(self.workload, self.knobs))
        expanded *= sum(
            min(b.input_columns(width), b.width)
            for width in cut(b.output_width, self.knobs.columns)
        )
        each = self.d.products + c.outputs * c.terms
        products = each * b.output_height * b.output_width
        if a is not None:
            products += a.inputs * a.terms * expanded
        return b.batch * c.inputs * products

    def _schedule(self) -> Iterator[None]:
        """Adds the tasks of one iteration at a time."""
        b, c, config = self.d.group, self.c, self.config
        self.pipeline.load_for_compute(self.workload.constants * config.acc.element_bytes)
        self.pipeline.load_for_compute(self._uops() * config.uop.element_bytes)
        self.weights.load(None, 1, held_weights(self.workload) * config.wgt.element_bytes)
        filtered, projected = self.workload.filtered_at, self.workload.projected_at
        before: list[_Tile | None] = [None] * projected
        rows = row_tiles(self.workload, self.knobs)
        columns = cut(b.output_width, self.knobs.columns)
        if self.knobs.carries:
            tiles = [(row, width) for width in columns for row in rows]
        else:
            tiles = [(row, width) for row in rows for width in columns]
        for _, (row, width) in product(range(b.batch), tiles):
            read = b.input_columns(width)
            size = row.rows, width, row.image_rows, min(read, b.width), row.padded_rows * read
            for number in range(c.inputs):
                before.append(_Tile(*size, number == 0, number == c.inputs - 1))
                self._iteration(before[-1], before[-1 - filtered], before[-1 - projected])
                yield
        for _ in range(projected + 2 * self.parts - 2):
            before.append(None)
            self._iteration(before[-1], before[-1 - filtered], before[-1 - projected])
            yield

    def _prefetched_bytes(self) -> float:
        """Bytes of weights that a preceding layer prefetches, if all fit a quarter of the
        scratchpad. Other layers need room for their own, and are too short to load more.
        """
        fit = held_weights(self.workload) <= self.config.wgt.depth // 4
        return self.workload.hidden_bytes(self.config) if fit else 0.0

    def _uops(self) -> int:
        """Micro-ops of the filters, which differ in the addresses of weights and inputs."""
        places = 2 * places_of_expansions(self.workload, self.knobs)
        column, width = row_tiles(self.workload, self.knobs), self.d.group.output_width
        turns = len(column) * parts(width, self.knobs.columns) * self.c.batch * self.c.inputs
        return min(lcm(places, self.c.inputs), turns) * self.d.products

    def _iteration(
        self, begun: _Tile | None, filtered: _Tile | None, projected: _Tile | None
    ) -> None:
        """Add the iteration that expands the tile ``begun``, if there is an expansion, and filters
        and projects the others. Its sums reuse the accumulators whose contents were forwarded two
        iterations earlier.
        """
        free = self.requantized[-2]
        gemm = project = sums = None
        first, expanded = self.knobs.expands_first, None
        if begun is not None and self.a is not None:
            expanded = begun, self.a
        if expanded is not None and first:
            gemm = self._expand(*expanded, [self.expansions[-4], free])
        if projected is not None and not first:
            gemm = project = self._project(projected, free)
        if filtered is not None:
            gemm = sums = self._filter(filtered, [self.expansions[-2], self.filtered[-2], free])
        if projected is not None and first:
            gemm = project = self._project(projected, free)
        if expanded is not None and not first:
            gemm = self._expand(*expanded, [self.expansions[-2], free])
        if projected is not None and projected.last and self.c.addition is not None:
            gemm = self._add(projected)
        alu: Task | None = None
        if filtered is not None:
            alu = self._requantize(filtered.results, self.d.group.requantize, gemm)
            if len(self.filtered) % 2 and not first:
                # GEMM projects the next channel tile in the same bank.
                cycles = self.c.outputs * self.c.terms * filtered.results
                alu = self.pipeline.alu(cycles / self.config.lane_columns, [])
        self.filtered.append(None)
        if filtered is not None:
            self.filtered[-1] = self.pipeline.forward(filtered.results, [alu, project])
        self.expansions.append(None)
        if expanded is not None:
            tile, expansion = expanded
            alu = self._requantize(tile.expanded, expansion.requantize, gemm)
            self.expansions[-1] = self.pipeline.forward(tile.padded, [alu, sums])
        if projected is not None and projected.last:
            self._end(projected)
        if self.unfinished:
            for tile in self.unfinished.popleft():
                alu = self._finish(tile)
        self.requantized.append(alu)

    def _project(self, tile: _Tile, free: Task | None) -> Task:
        stored = self.stores[-2 * self.parts] if tile.first else None
        cycles = self.c.outputs * self.c.terms * tile.results
        return self.pipeline.gemm(cycles, [self.filtered[-2], free, stored])

    def _requantize(self, vectors: float, by: Requantization, after: Task | None) -> Task:
        uops = vectors + _ALU_CYCLES / self.config.lane_columns
        return self.pipeline.alu(uops, [after], by.operations)

    def _expand(self, tile: _Tile, a: Conv2d, after: list[Task | None]) -> Task:
        if tile.first:
            size = tile.image_rows, tile.image_columns
            self.image.load(None, *self._rows(a.inputs, *size, a.width))
        return self._of_image(a.inputs * a.terms * tile.expanded, after)

    def _filter(self, tile: _Tile, after: list[Task | None]) -> Task:
        cycles = self.d.products * tile.results
        if self.a is not None:
            return self.pipeline.gemm(cycles, after)
        size = tile.image_rows, tile.image_columns
        self.image.load(None, *self._rows(1, *size, self.d.group.width))
        return self._of_image(cycles, after)

    def _of_image(self, cycles: float, after: list[Task | None]) -> Task:
        """Multiply an image tile by weights."""
        gemm = self.pipeline.gemm(cycles, [self.image.loaded, self.weights.loaded, *after])
        self.image.use(gemm)
        return gemm

    def _add(self, tile: _Tile) -> Task:
        """Load the other operand of the addition into accumulators."""
        moved = self._result_rows(tile)
        self.added.load(None, *moved)
        stored = self.stores[-added_copies(self.workload) * self.parts]
        task = self.pipeline.gemm(self.c.outputs * tile.results, [self.added.loaded, stored])
        self.added.use(task)
        return task

    def _end(self, tile: _Tile) -> None:
        """Plan the epilogue of a tile whose sums are complete, part by part."""
        while len(self.unfinished) < 2 * self.parts - 1:
            self.unfinished.append([])
        for number in range(self.parts):
            self.unfinished[2 * number].append(tile)

    def _finish(self, tile: _Tile) -> Task:
        """Run the epilogue of a part of a tile, and store it."""
        results = self.c.outputs * tile.results / self.parts
        moved = self._result_rows(tile)
        rows = max(moved[0] // self.parts, 1)
        if self.c.addition is not None and results_bank(self.workload) is not None:
            # GEMM projects the next channel tile in the bank of these sums.
            self.pipeline.alu(results * self.c.terms / self.config.lane_columns, [])
        alu = self._requantize(results, self.c.requantize, None)
        size = prod(moved) // (rows * self.parts)
        self.stores.append(self.pipeline.store(rows, size, [alu]))
        return alu

    def _result_rows(self, tile: _Tile) -> tuple[int, int]:
        """`_rows` of the results of ``tile``, and of the other operand of an addition."""
        return self._rows(self.c.outputs, tile.rows, tile.columns, self.d.group.output_width)

    def _rows(self, channels: int, rows: int, columns: int, width: int) -> tuple[int, int]:
        """Number of contiguous rows in DRAM that hold ``rows`` rows of an image ``width`` pixels
        wide, and bytes per row.
        """
        if columns == width:
            rows, columns = 1, rows * columns
        return channels * rows, columns * self.config.inp.element_bytes
