"""Cycles of a fused chain's schedule: walks its tiles through the cost model."""

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
from amaranth_vta.sw.compiler.tuner.cost_model import TILE_CYCLES, Estimate, Pipeline, Task
from amaranth_vta.sw.compiler.tuner.tiles import cut, even_tiles, parts

from .sizes import (
    WEIGHT_COPIES,
    DepthwiseChainKnobs,
    DepthwiseChainSizes,
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
# Part of the weight scratchpad that a preceding layer can prefetch: a quarter.
_SHARE_OF_PREFETCHED = 4
# Cycles of an ALU instruction in addition to those of its micro-ops.
_ALU_CYCLES = 9


def estimated(
    workload: DepthwiseChainSizes,
    config: Config,
    knobs: DepthwiseChainKnobs,
    limit: float = inf,
) -> Estimate:
    """Estimate a schedule by walking all its tiles through the cost model; the walk stops once the
    schedule is certain to take at least ``limit`` cycles.
    """
    return _Tiles(workload, config, knobs).estimate(limit)


def candidates(
    workload: DepthwiseChainSizes, config: Config
) -> list[tuple[float, DepthwiseChainKnobs]]:
    """Knobs whose tiles fit the scratchpads, the best by a rough estimate first."""
    b, found = workload.depthwise.group, []
    # Without an expansion, every iteration loads a part of the image.
    copies_of_image = (4, 2) if workload.expansion is None else (2, 1)
    for rows, columns, copies in product(
        even_tiles(b.output_height), even_tiles(b.output_width), copies_of_image
    ):
        is_one = (b.batch, rows, columns) == (1, b.output_height, b.output_width)
        for flags in _flags(workload, is_one):
            knobs = DepthwiseChainKnobs(rows, columns, copies, *flags)
            if fits(workload, config, knobs):
                found.append((_rough(workload, config, knobs), knobs))
    return sorted(found, key=lambda item: item[0])


def _flags(workload: DepthwiseChainSizes, is_one_tile: bool) -> list[tuple[bool, bool, bool]]:
    """The flags of knobs to try: whether they carry rows, expand first and hold all weights. A
    single output tile needs each weight once, so that the following layer has room to prefetch.
    """
    if workload.projection is None:
        return [(False, False, whole) for whole in ((False,) if is_one_tile else (True, False))]
    if workload.expansion is None:
        return [(False, False, True)]
    return [*product((False, True), (False, True), (True,))]


def with_each_kind_in_front(
    candidates: Sequence[tuple[float, DepthwiseChainKnobs]],
) -> tuple[int, list[tuple[float, DepthwiseChainKnobs]]]:
    """``candidates`` with the best of each kind of schedule in front, and the number of these."""
    front, others = list[tuple[float, DepthwiseChainKnobs]](), list(candidates)
    for carries, first in product((False, True), repeat=2):
        kind = [item for item in others if _kind(item[1]) == (carries, first)]
        front += kind[: _WALKS if carries or first else 2 * _WALKS]
    chosen = {knobs for _, knobs in front}
    return len(front), front + [item for item in others if item[1] not in chosen]


def _kind(knobs: DepthwiseChainKnobs) -> tuple[bool, bool]:
    return knobs.carries, knobs.expands_first


def _rough(workload: DepthwiseChainSizes, config: Config, knobs: DepthwiseChainKnobs) -> float:
    """Estimated cycles, assuming equal tiles."""
    a, d, c = workload.expansion, workload.depthwise, workload.projection
    b = d.group
    column, columns = row_tiles(workload, knobs), b.input_columns(knobs.columns)
    tiles = len(column) * parts(b.output_width, knobs.columns) * b.batch
    # Means over the tiles of a column.
    expanded = sum(tile.image_rows for tile in column) * min(columns, b.width) / len(column)
    padded = sum(tile.padded_rows for tile in column) * columns / len(column)
    filtered = knobs.rows * knobs.columns
    gemm = float(d.products * filtered)
    alu, forwards, exposed = float(b.requantize.operations * filtered), 0.0, 0.0
    if a is not None:
        gemm += a.products * expanded
        alu += a.requantize.operations * expanded
        forwards += padded
        exposed += a.inputs * expanded * (knobs.image_copies == 1)
    if c is not None:
        gemm += c.outputs * c.terms * filtered
        forwards += filtered
    iteration = max(gemm, alu * config.lane_columns, forwards) + TILE_CYCLES
    return tiles * (d.groups * iteration + exposed)


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
        self, workload: DepthwiseChainSizes, config: Config, knobs: DepthwiseChainKnobs
    ) -> None:
        self.workload, self.knobs, self.config = workload, knobs, config
        self.a, self.d, self.c = workload.expansion, workload.depthwise, workload.projection
        self.pipeline = Pipeline(config)
        self.image = BufferCopies(self.pipeline, knobs.image_copies)
        self.added = BufferCopies(self.pipeline, 1)
        self.weights = BufferCopies(self.pipeline, WEIGHT_COPIES, self._prefetched_bytes())
        # Latest tasks, with None before the first. By iteration: forwards of expansions, forwards
        # of filters, last ALU operations; by tile: stores.
        self.expansions: list[Task | None] = [None] * 4
        self.filtered: list[Task | None] = [None] * 2
        self.requantized: list[Task | None] = [None] * 2
        self.parts = epilogue_parts(workload, knobs)
        self.stores: list[Task | None] = [None] * (2 * self.parts)
        # Iterations by which forwards of expansions are delayed; expanded tiles with their last ALU
        # operations.
        self.delay = 1 if self.c is None else 0
        self.unforwarded: list[tuple[_Tile, Task | None] | None] = [None] * 2
        # Tiles of which a part is left to requantize and store, by iteration.
        self.unfinished: deque[list[_Tile]] = deque()

    def estimate(self, limit: float) -> Estimate:
        return self.pipeline.estimate(self._schedule(), limit, self._products())

    def _products(self) -> int:
        """Cycles of GEMM to expand, filter and project all tiles."""
        b = self.d.group
        each = self.d.products + (0 if self.c is None else self.c.outputs * self.c.terms)
        products = each * b.output_height * b.output_width
        if self.a is not None:
            rows = sum(tile.image_rows for tile in row_tiles(self.workload, self.knobs))
            widths = cut(b.output_width, self.knobs.columns)
            columns = sum(min(b.input_columns(width), b.width) for width in widths)
            products += self.a.products * rows * columns
        return b.batch * self.d.groups * products

    def _schedule(self) -> Iterator[None]:
        """Adds the tasks of one iteration at a time."""
        b, groups, config = self.d.group, self.d.groups, self.config
        self.pipeline.load_for_compute(self.workload.constants * config.acc.element_bytes)
        self.pipeline.load_for_compute(self._uops() * config.uop.element_bytes)
        each, shared = (tiles * config.wgt.element_bytes for tiles in self.workload.weights)
        if self.knobs.whole_weights:
            self.weights.load(None, 1, groups * each + shared)
        elif shared:
            self.pipeline.load(1, shared)
        filtered, ended = self.workload.filtered_after, self.workload.ends_after
        before: list[_Tile | None] = [None] * ended
        rows = row_tiles(self.workload, self.knobs)
        columns = cut(b.output_width, self.knobs.columns)
        if self.knobs.carries:
            tiles = [(row, width) for width in columns for row in rows]
        else:
            tiles = [(row, width) for row in rows for width in columns]
        for _, (row, width) in product(range(b.batch), tiles):
            read = b.input_columns(width)
            size = row.rows, width, row.image_rows, min(read, b.width), row.padded_rows * read
            for number in range(groups):
                before.append(_Tile(*size, number == 0, number == groups - 1))
                self._iteration(before[-1], before[-1 - filtered], before[-1 - ended])
                yield
        for _ in range(ended + 2 * self.parts - 2):
            before.append(None)
            self._iteration(before[-1], before[-1 - filtered], before[-1 - ended])
            yield

    def _prefetched_bytes(self) -> float:
        """Bytes of weights that a preceding layer prefetches, if all fit a part of the scratchpad.
        Other layers need room for their own, and are too short to load more.
        """
        most = self.config.wgt.depth // _SHARE_OF_PREFETCHED
        fit = held_weights(self.workload, self.knobs) <= most
        return self.workload.hidden_bytes(self.config) if fit else 0.0

    def _uops(self) -> int:
        """Micro-ops of the filters, which differ in the addresses of weights and inputs."""
        places = 2 * places_of_expansions(self.workload, self.knobs)
        column, b = row_tiles(self.workload, self.knobs), self.d.group
        turns = len(column) * parts(b.output_width, self.knobs.columns) * b.batch * self.d.groups
        return min(lcm(places, self.d.groups), turns) * self.d.products

    def _iteration(self, begun: _Tile | None, filtered: _Tile | None, ended: _Tile | None) -> None:
        """Add the iteration that expands the tile ``begun``, if there is an expansion, filters
        another one, and projects the one that ``ended``, if there is a projection. Its sums reuse
        the accumulators whose contents were forwarded two iterations earlier.
        """
        free, first = self.requantized[-2], self.knobs.expands_first
        gemm = project = sums = None
        expanded = None if begun is None or self.a is None else (begun, self.a)
        projected = None if ended is None or self.c is None else (ended, self.c)
        completed = ended if projected is not None and ended is not None and ended.last else None
        if expanded is not None and first:
            gemm = self._expand(*expanded, [self.expansions[-4], free])
        if projected is not None and not first:
            gemm = project = self._project(*projected, free)
        if filtered is not None:
            gemm = sums = self._filter(filtered, free)
        if projected is not None and first:
            gemm = project = self._project(*projected, free)
        if expanded is not None and not first:
            gemm = self._expand(*expanded, [self.expansions[self.delay - 2], free])
        if completed is not None and self.c is not None and self.c.addition is not None:
            gemm = self._add(completed, self.c)
        alu = results = None
        if filtered is not None:
            alu = results = self._requantize(filtered.results, self.d.group.requantize, gemm)
        if self.c is not None:
            alu = self._forward_filtered(filtered, self.c, alu, project)
        if expanded is not None:
            tile, expansion = expanded
            alu = self._requantize(tile.expanded, expansion.requantize, gemm)
        self.unforwarded.append(None if begun is None else (begun, alu))
        self._forward_expanded(sums)
        if completed is not None:
            self._end(completed)
        if self.unfinished:
            for tile in self.unfinished.popleft():
                alu = self._finish(tile, self.workload.last)
        if self.c is None and filtered is not None:
            self._store(filtered, results)
        self.requantized.append(alu)

    def _project(self, tile: _Tile, c: Conv2d, free: Task | None) -> Task:
        stored = self.stores[-2 * self.parts] if tile.first else None
        cycles = c.outputs * c.terms * tile.results
        return self.pipeline.gemm(cycles, [self.filtered[-2], free, stored])

    def _requantize(self, vectors: float, by: Requantization, after: Task | None) -> Task:
        uops = vectors + _ALU_CYCLES / self.config.lane_columns
        return self.pipeline.alu(uops, [after], by.operations)

    def _expand(self, tile: _Tile, a: Conv2d, after: list[Task | None]) -> Task:
        if tile.first:
            size = tile.image_rows, tile.image_columns
            self.image.load(None, *self._rows(a.inputs, *size, a.width))
        if not self.knobs.whole_weights:
            each, _ = self.workload.weights
            self.weights.load(None, 1, each * self.config.wgt.element_bytes)
        return self._of_image(a.products * tile.expanded, after)

    def _filter(self, tile: _Tile, free: Task | None) -> Task:
        done = self.stores[-2] if self.c is None else self.filtered[-2]
        after = [self.expansions[-2], done, free]
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
        self.weights.use(gemm)
        return gemm

    def _add(self, tile: _Tile, c: Conv2d) -> Task:
        """Load the other operand of an addition into accumulators."""
        self.added.load(None, *self._result_rows(tile))
        stored = self.stores[-added_copies(self.workload) * self.parts]
        task = self.pipeline.gemm(c.outputs * tile.results, [self.added.loaded, stored])
        self.added.use(task)
        return task

    def _forward_filtered(
        self, tile: _Tile | None, c: Conv2d, alu: Task | None, project: Task | None
    ) -> Task | None:
        """Forward filtered results to the projection, after their ALU operations and the products
        that read the same copy; returns the last ALU operations.
        """
        if tile is None:
            self.filtered.append(None)
            return alu
        if len(self.filtered) % 2 and not self.knobs.expands_first:
            # GEMM projects the next channel tile in the same bank.
            cycles = c.outputs * c.terms * tile.results
            alu = self.pipeline.alu(cycles / self.config.lane_columns, [])
        self.filtered.append(self.pipeline.forward(tile.results, [alu, project]))
        return alu

    def _forward_expanded(self, sums: Task | None) -> None:
        """Forward the results of an expansion after the ``sums`` that read the same copy."""
        if self.a is None or (item := self.unforwarded[-1 - self.delay]) is None:
            self.expansions.append(None)
        else:
            tile, alu = item
            self.expansions.append(self.pipeline.forward(tile.padded, [alu, sums]))

    def _end(self, tile: _Tile) -> None:
        """Plan the epilogue of a tile whose sums are complete, part by part."""
        while len(self.unfinished) < 2 * self.parts - 1:
            self.unfinished.append([])
        for number in range(self.parts):
            self.unfinished[2 * number].append(tile)

    def _finish(self, tile: _Tile, c: Conv2d) -> Task:
        """Run the epilogue of a part of a projected tile, and store it."""
        results = c.outputs * tile.results / self.parts
        if c.addition is not None and results_bank(self.workload) is not None:
            # GEMM projects the next channel tile in the bank of these sums.
            self.pipeline.alu(results * c.terms / self.config.lane_columns, [])
        alu = self._requantize(results, c.requantize, None)
        self._store(tile, alu)
        return alu

    def _store(self, tile: _Tile, alu: Task | None) -> None:
        """Store a part of the results of ``tile``."""
        moved = self._result_rows(tile)
        rows = max(moved[0] // self.parts, 1)
        size = prod(moved) // (rows * self.parts)
        self.stores.append(self.pipeline.store(rows, size, [alu]))

    def _result_rows(self, tile: _Tile) -> tuple[int, int]:
        """`_rows` of the results of ``tile``, and of the other operand of an addition."""
        outputs = 1 if self.c is None else self.c.outputs
        return self._rows(outputs, tile.rows, tile.columns, self.d.group.output_width)

    def _rows(self, channels: int, rows: int, columns: int, width: int) -> tuple[int, int]:
        """Number of contiguous rows in DRAM that hold ``rows`` rows of an image ``width`` pixels
        wide, and bytes per row.
        """
        if columns == width:
            rows, columns = 1, rows * columns
        return channels * rows, columns * self.config.inp.element_bytes
