"""Cycles of a tiling of a `TiledProduct`: walks its tiles through the cost model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import inf, lcm, prod
from typing import NamedTuple

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.operators.building_blocks.product import weight_memory

from .cost_model import BufferCopies, Estimate, Pipeline, Task, bus_cycles
from .tiled_product import TiledProduct, TileSizes, Tiling
from .tiles import cut

# Rows of a transfer, bytes per row, and the number of instructions.
_Rows = tuple[int, int, int]


def estimated(p: TiledProduct, config: Config, tiling: Tiling, limit: float = inf) -> Estimate:
    """Estimate a schedule by walking all its tiles through the cost model; the walk stops once the
    schedule is certain to take at least ``limit`` cycles.
    """
    return _Tiles(p, config, tiling).estimate(limit)


class _Step(NamedTuple):
    """A step of a tile's sum: cycles of its products, and transfers of its operands."""

    products: int
    image: _Rows
    weights: _Rows


class _Nest:
    """The loop nest for output tiles of one size. ``image`` and ``weights`` are equal for nests
    whose buffers are shared: these are loaded outside of the nest.
    """

    __slots__ = ("image", "outputs", "pixels", "steps", "stored", "vectors", "weights")

    def __init__(self, p: TiledProduct, config: Config, t: Tiling, tile: TileSizes) -> None:
        self.outputs = tile.outputs
        self.pixels, self.vectors = p.pixels(tile), p.vectors(tile)
        self.stored = _rows(*p.results_in_dram(tile), config.out.element_bytes)
        weight_bytes = weight_memory(p.int4_weights, config).element_bytes
        self.steps = []
        kept = tile.outputs, tile.rows, tile.columns
        for inputs, kernel_rows in product(
            cut(p.whole.inputs, t.inputs), cut(p.whole.kernel_rows, t.kernel_rows)
        ):
            step = TileSizes(*kept, inputs, kernel_rows)
            image = _rows(*p.image_in_dram(step), config.inp.element_bytes)
            weights = _rows(1, *p.weights_in_dram(step), weight_bytes)
            self.steps.append(_Step(p.gemm_cycles(step), image, weights))
        self.image = kept if t.weights_outside else kept[1:]
        self.weights = kept[:1] if t.weights_outside and p.is_whole(t) else kept


def _rows(blocks: int, rows: int, length: int, element_bytes: int) -> _Rows:
    # An instruction transfers rows of one stride.
    instructions = blocks if rows > 1 else 1
    return int(blocks * rows), int(length) * element_bytes, int(instructions)


class _Tile(NamedTuple):
    """An output tile: the indices of its weight tile and image tile, and its loop nest."""

    block: int
    image: int
    nest: _Nest


class _Tiles:
    """The tiles of a product, in the order of its schedule."""

    def __init__(self, p: TiledProduct, config: Config, tiling: Tiling) -> None:
        self.p, self.config, self.tiling = p, config, tiling
        self.pipeline = Pipeline(config)
        self.image = BufferCopies(self.pipeline, p.copies_of_image(tiling))
        prefetched = float(p.prefetched_bytes(tiling, config))
        self.weights = BufferCopies(self.pipeline, p.copies_of_weights(tiling), prefetched)
        self.added = BufferCopies(self.pipeline, tiling.added_copies)
        self.whole, self.resets = p.is_whole(tiling), p.resets(tiling, config)
        self.tiles = self._in_order()

    def estimate(self, limit: float) -> Estimate:
        p, config = self.p, self.config
        cycles: dict[_Nest, int] = {}
        gemm = pixels = 0
        for tile in self.tiles:
            nest = tile.nest
            if nest not in cycles:
                cycles[nest] = sum(step.products for step in nest.steps)
            gemm += cycles[nest]
            pixels += nest.pixels
        gemm += pixels * (self.resets + p.is_added_to)
        last = self.tiles[-1].nest
        alu = (last.pixels if config.overlap else pixels) * p.operations * config.lane_columns
        stored = last.vectors * p.requantize.parts * config.out.element_bytes
        store = float(bus_cycles(config, 1, stored))
        return self.pipeline.estimate(self._schedule(), limit, gemm + alu + store)

    def _schedule(self) -> Iterator[None]:
        """Adds the tasks of one tile per step."""
        p, tiling, pipeline, added = self.p, self.tiling, self.pipeline, self.added
        behind_alu = self._behind_alu()
        micro_ops, reloads = self._micro_ops()
        pipeline.load_for_compute(micro_ops)
        if p.requantize.shared:
            pipeline.load_for_compute(p.requantize.shared * self.config.acc.element_bytes)
        held = int(p.outputs_held(tiling, self.config))
        copies, in_turn = tiling.copies_of_results, tiling.in_turn
        operations, pooled = p.operations, p.pooled_operations
        stores: list[Task] = []
        alu: Task | None = None
        before: _Tile | None = None
        blocks = channels = 0
        for tile in self.tiles:
            nest = tile.nest
            if in_turn and tile.block == blocks:
                if channels % held == 0:
                    self._load_constants(min(held, p.channels - channels))
                blocks, channels = blocks + 1, channels + nest.outputs
            free = stores[-copies] if len(stores) >= copies else None
            waits: list[Task | None] = [free, alu if nest in behind_alu else None]
            if p.is_added_to:
                added.load(None, *nest.stored)
                moved = pipeline.gemm(nest.pixels, [*waits, added.loaded])
                added.use(moved)
                waits = [moved]
            if self.resets:
                waits = [pipeline.reset(nest.pixels, waits)]
            gemm: Task | None = None
            for step in nest.steps:
                self._load(tile, before, step)
                before = tile
                if reloads:
                    pipeline.load_for_compute(micro_ops)
                waits += [self.image.loaded, self.weights.loaded]
                gemm = pipeline.gemm(step.products, waits)
                self.image.use(gemm)
                self.weights.use(gemm)
                waits = []
            if not in_turn:
                self._load_constants(nest.outputs)
            # The WaitForAlu that `mark_independent` inserts before each epilogue.
            waited = pipeline.reset(0, [alu]) if in_turn and alu is not None else None
            changes = nest.outputs * p.parameter_cycles / max(operations, 1)
            alu = pipeline.alu(nest.pixels + changes, [gemm, waited], operations)
            if pooled:
                alu = pipeline.alu(nest.vectors * pooled, [alu])
            pieces, length, instructions = nest.stored
            times = p.requantize.parts
            stores.append(pipeline.store(pieces * times, length, [alu], instructions * times))
            yield

    def _in_order(self) -> list[_Tile]:
        p, t, whole = self.p, self.tiling, self.p.whole
        rows, columns = cut(whole.rows, t.rows), cut(whole.columns, t.columns)
        order = list(product(rows, columns))
        if p.carries:
            order = [(row, column) for column in columns for row in rows]
        images = list(enumerate(order * p.batch))
        blocks = list(enumerate(cut(whole.outputs, t.outputs) * p.independent_products))
        nests = {
            (outputs, size): _Nest(p, self.config, t, TileSizes(outputs, *size))
            for outputs in {outputs for _, outputs in blocks}
            for size in {size for _, size in images}
        }
        if t.weights_outside:
            pairs = [(block, image) for block in blocks for image in images]
        else:
            pairs = [(block, image) for image in images for block in blocks]
        # The walk may be pruned before it reaches all of these tiles: `_make` halves their cost.
        make = _Tile._make
        return [make((block, image, nests[sizes, size])) for (block, sizes), (image, size) in pairs]

    def _behind_alu(self) -> set[_Nest]:
        """Loop nests whose GEMM waits for the ALU because some tile accumulates in the bank that
        the ALU reads. Each nest alternates between the two banks.
        """
        if not self.tiling.in_turn:
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
        p, t, config = self.p, self.tiling, self.config
        loops = [*p.sums(t), t.inputs, t.kernel_rows, *p.weight_loops]
        copies = lcm(t.copies_of_results, p.copies_of_image(t)) * p.copies_of_weights(t)
        copies = min(copies, len(self.tiles) * p.steps(t))
        nests = len({tile.nest for tile in self.tiles})
        one = prod(sorted([*loops, t.outputs])[:-2])
        one += p.row_sums * prod(sorted(loops)[:-2])
        if one * copies * nests <= config.uop.depth:
            return one * copies * nests * config.uop.element_bytes, False
        return one * config.uop.element_bytes, True

    def _load_constants(self, channels: int) -> None:
        """Load the constants of channel tiles, and prepare the parameters."""
        requantize, sets = self.p.requantize, channels * self.p.phases
        for size in filter(None, requantize.constant_bytes(self.config)):
            self.pipeline.load_for_compute(sets * size)
        if requantize.preparation_cycles:
            self.pipeline.alu(sets * requantize.preparation_cycles, [])

    def _load(self, tile: _Tile, before: _Tile | None, step: _Step) -> None:
        """Load the operands of a step, except those still held from the previous step, which was in
        the tile ``before``.
        """
        nest = tile.nest
        if self.whole and self.tiling.weights_outside:
            if before is None or before.block != tile.block:
                self.weights.load(nest.weights, *step.weights)
            self.image.load(nest.image, *step.image)
        else:
            if not (self.whole and before is not None and before.image == tile.image):
                self.image.load(nest.image, *step.image)
            self.weights.load(nest.weights, *step.weights)
