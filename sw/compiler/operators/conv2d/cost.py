"""Cycles of a convolution's schedule: walks its tiles through the cost model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import inf, lcm, prod
from typing import NamedTuple

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.operators.building_blocks.product import weight_memory
from amaranth_vta.sw.compiler.tuner.cost_model import (
    BufferCopies,
    Estimate,
    Pipeline,
    Task,
    bus_cycles,
)
from amaranth_vta.sw.compiler.tuner.tiles import cut

from .sizes import Conv2dKnobs, Conv2dSizes


def estimated(c: Conv2dSizes, config: Config, knobs: Conv2dKnobs, limit: float = inf) -> Estimate:
    """Estimate a schedule by walking all its tiles through the cost model; the walk stops once the
    schedule is certain to take at least ``limit`` cycles.
    """
    return _Tiles(c, config, knobs).estimate(limit)


@dataclass(frozen=True, eq=False, slots=True)
class _Nest:
    """The loop nest for output tiles of one size; one object per size. It accumulates ``pixels``
    vectors, which with a pooling are more than it stores.
    """

    outputs: int
    rows: int
    columns: int
    pixels: int

    @property
    def vectors(self) -> int:
        return self.outputs * self.rows * self.columns


class _Tile(NamedTuple):
    """An output tile: the indices of its weight tile and image tile, and its loop nest."""

    block: int
    image: int
    nest: _Nest


class _Tiles:
    """The tiles of a convolution, in the order of its schedule."""

    def __init__(self, c: Conv2dSizes, config: Config, knobs: Conv2dKnobs) -> None:
        self.c, self.config, self.knobs = c, config, knobs
        self.pipeline = Pipeline(config)
        self.image = BufferCopies(self.pipeline, knobs.copies_of_image(c))
        self.weights = BufferCopies(self.pipeline, knobs.copies_of_weights(c))
        self.whole, self.output_width = knobs.is_whole(c), c.output_width
        # Memoized by tile size: number of contiguous rows in DRAM, and bytes per row.
        self.image_rows: dict[tuple[int, ...], tuple[int, int]] = {}
        self.weight_rows: dict[tuple[int, ...], tuple[int, int]] = {}
        self.result_rows: dict[_Nest, tuple[int, int]] = {}
        self.tiles = self._in_order()
        self.steps = list(product(cut(c.inputs, knobs.inputs), cut(c.kernel[0], knobs.kernel_rows)))

    def estimate(self, limit: float) -> Estimate:
        c = self.c
        resets = self.knobs.resets(c, self.config)
        pixels = sum(tile.nest.pixels for tile in self.tiles)
        gemm = pixels * (c.products + resets + (c.addition is not None))
        gemm += sum(tile.nest.pixels // tile.nest.outputs for tile in self.tiles) * c.sum_products
        last = self.tiles[-1].nest
        alu = (last.pixels if self.config.overlap else pixels) * c.operations
        stored = last.vectors * c.requantize.parts * self.config.out.element_bytes
        store = bus_cycles(self.config, 1, stored, reads=False)
        least = gemm + alu + float(store)
        return self.pipeline.estimate(self._schedule(), limit, least)

    def _schedule(self) -> Iterator[None]:
        """Adds the tasks of one tile per step."""
        c, knobs, pipeline = self.c, self.knobs, self.pipeline
        behind_alu = self._behind_alu()
        micro_ops, reloads = self._micro_ops()
        pipeline.load_for_compute(micro_ops)
        if knobs.in_turn:
            self._load_constants(c.outputs)
        if c.requantize.shared:
            pipeline.load_for_compute(c.requantize.shared * self.config.acc.element_bytes)
        copies, resets = knobs.copies_of_results(), knobs.resets(c, self.config)
        stores: list[Task] = []
        alu: Task | None = None
        added: list[Task] = []
        before: _Tile | None = None
        for tile in self.tiles:
            nest = tile.nest
            vectors = nest.pixels
            free = stores[-copies] if len(stores) >= copies else None
            waits: list[Task | None] = [free, alu if nest in behind_alu else None]
            if c.addition is not None:
                used = added[-knobs.added_copies] if len(added) >= knobs.added_copies else None
                added.append(pipeline.gemm(vectors, [*waits, self._load_added(nest, used)]))
                waits = [added[-1]]
            if resets:
                waits = [pipeline.reset(vectors, waits)]
            gemm: Task | None = None
            for inputs, kernel_rows in self.steps:
                self._load(tile, before, inputs, kernel_rows)
                before = tile
                if reloads:
                    pipeline.load_for_compute(micro_ops)
                products = vectors * inputs * kernel_rows * c.weights_per_row
                products += vectors // nest.outputs * c.sum_products
                gemm = pipeline.gemm(products, [*waits, self.image.loaded, self.weights.loaded])
                self.image.use(gemm)
                self.weights.use(gemm)
                waits = []
            if not knobs.in_turn:
                self._load_constants(nest.outputs)
            # The WaitForAlu that `mark_independent` inserts before each epilogue.
            waited = pipeline.reset(0, [alu]) if knobs.in_turn and alu is not None else None
            alu = pipeline.alu(vectors, [gemm, waited], c.operations)
            if c.pooled_operations:
                alu = pipeline.alu(nest.vectors * c.pooled_operations, [alu])
            stores.append(self._store(nest, alu))
            yield

    def _in_order(self) -> list[_Tile]:
        c, knobs = self.c, self.knobs
        rows, columns = cut(c.output_height, knobs.rows), cut(c.output_width, knobs.columns)
        order = list(product(rows, columns))
        if c.carries:
            order = [(row, column) for column in columns for row in rows]
        images = list(enumerate(order * c.batch))
        blocks = list(enumerate(cut(c.outputs, knobs.outputs)))
        nests = {
            (outputs, size): self._nest(outputs, *size)
            for outputs in {outputs for _, outputs in blocks}
            for size in {size for _, size in images}
        }
        if knobs.weights_outside:
            pairs = [(block, image) for block in blocks for image in images]
        else:
            pairs = [(block, image) for image in images for block in blocks]
        # The walk may be pruned before it reaches all of these tiles: `_make` halves their cost.
        make = _Tile._make
        return [
            make((block, image, nests[outputs, size])) for (block, outputs), (image, size) in pairs
        ]

    def _nest(self, outputs: int, rows: int, columns: int) -> _Nest:
        pixels = outputs * self.c.image_rows(rows) * self.c.image_columns(columns)
        return _Nest(outputs, rows, columns, pixels)

    def _behind_alu(self) -> set[_Nest]:
        """Loop nests whose GEMM waits for the ALU because some tile accumulates in the bank that
        the ALU reads. Each nest alternates between the two banks.
        """
        if not self.knobs.in_turn:
            return {tile.nest for tile in self.tiles[1:]}
        banks: dict[_Nest, int] = {}
        found = set()
        before = None
        for tile in self.tiles:
            bank = banks.get(tile.nest, 0)
            banks[tile.nest] = 1 - bank
            if bank == before:
                found.add(tile.nest)
            before = bank
        return found

    def _micro_ops(self) -> tuple[int, bool]:
        """Bytes of all micro-ops and False if they all fit; else the bytes for one GEMM and True.

        Two loops become loops of the instruction, the others are unrolled into micro-ops, and each
        combination of buffer copies needs separate micro-ops.
        """
        c, knobs, config = self.c, self.knobs, self.config
        rows, columns = c.image_rows(knobs.rows), c.image_columns(knobs.columns)
        loops = [rows, columns, knobs.inputs, knobs.kernel_rows, c.kernel[1], c.terms]
        copies = lcm(knobs.copies_of_results(), knobs.copies_of_image(c))
        copies = min(copies * knobs.copies_of_weights(c), len(self.tiles) * len(self.steps))
        nests = len({tile.nest for tile in self.tiles})
        one = prod(sorted([*loops, knobs.outputs])[:-2])
        one += c.row_sums * prod(sorted(loops)[:-2])
        if one * copies * nests <= config.uop.depth:
            return one * copies * nests * config.uop.element_bytes, False
        return one * config.uop.element_bytes, True

    def _load_constants(self, outputs: int) -> None:
        elements = outputs * self.c.requantize.constants
        self.pipeline.load_for_compute(elements * self.config.acc.element_bytes)

    def _load(self, tile: _Tile, before: _Tile | None, inputs: int, kernel_rows: int) -> None:
        """Load the operands of a step, except those still held from the previous step, which was in
        the tile ``before``.
        """
        stays, outside = self.whole, self.knobs.weights_outside
        same_block = before is not None and before.block == tile.block
        same_image = before is not None and before.image == tile.image
        if stays and outside:
            if not same_block:
                self._load_weights(tile, inputs, kernel_rows)
            self._load_image(tile, inputs, kernel_rows)
        else:
            if not (stays and same_image):
                self._load_image(tile, inputs, kernel_rows)
            self._load_weights(tile, inputs, kernel_rows)

    def _load_image(self, tile: _Tile, inputs: int, kernel_rows: int) -> None:
        nest = tile.nest
        known = (nest.rows, nest.columns, inputs, kernel_rows)
        if known not in self.image_rows:
            self.image_rows[known] = self._rows_of_image(*known)
        alike = nest if self.knobs.weights_outside else known[:2]
        self.image.load(*self.image_rows[known], alike)

    def _rows_of_image(
        self, rows: int, columns: int, inputs: int, kernel_rows: int
    ) -> tuple[int, int]:
        """Number of contiguous rows in DRAM that hold an image tile, and bytes per row."""
        c = self.c
        rows, columns = c.input_rows(rows, kernel_rows), c.input_columns(columns)
        rows, columns = min(rows, c.height), min(columns, c.width)
        if columns == c.width and c.row_step == 1 and not any(c.pads):
            rows, columns = 1, rows * columns
        return inputs * rows, columns * self.config.inp.element_bytes

    def _load_weights(self, tile: _Tile, inputs: int, kernel_rows: int) -> None:
        nest = tile.nest
        known = (nest.outputs, inputs, kernel_rows)
        if known not in self.weight_rows:
            self.weight_rows[known] = self._rows_of_weights(*known)
        within = self.knobs.weights_outside and self.whole
        self.weights.load(*self.weight_rows[known], known[:1] if within else nest)

    def _rows_of_weights(self, outputs: int, inputs: int, kernel_rows: int) -> tuple[int, int]:
        rows, row = outputs * inputs, kernel_rows * self.c.weights_per_row
        if kernel_rows == self.c.kernel[0]:
            rows, row = outputs, inputs * row
            if inputs == self.c.inputs:
                rows, row = 1, outputs * row
        return rows, row * weight_memory(self.c.int4_weights, self.config).element_bytes

    def _load_added(self, nest: _Nest, used: Task | None) -> Task:
        """Load a tile of the addition's other operand once ``used``, the last user of its buffer,
        ends.
        """
        return self.pipeline.load(*self._rows_of_results(nest), [used])

    def _store(self, nest: _Nest, after: Task) -> Task:
        rows, row = self._rows_of_results(nest)
        return self.pipeline.store(rows * self.c.requantize.parts, row, [after])

    def _rows_of_results(self, nest: _Nest) -> tuple[int, int]:
        found = self.result_rows.get(nest)
        if found is None:
            rows, columns = nest.rows, nest.columns
            if columns == self.output_width:
                rows, columns = 1, rows * columns
            found = nest.outputs * rows, columns * self.config.out.element_bytes
            self.result_rows[nest] = found
        return found
