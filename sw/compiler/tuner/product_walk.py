"""Cycles of a tiling of a `TiledProduct`: walks its tiles through the cost model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import inf, lcm, prod
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.operators.building_blocks.product import weight_memory

from .buffer_copies import BufferCopies
from .cost_model import Estimate, Pipeline, Task, bus_cycles
from .repeated_steps import RepeatedSteps
from .tiled_product import TiledProduct, TileSizes, Tiling
from .tiles import cut

# Rows of a transfer, bytes per row, and the number of instructions.
_Rows = tuple[int, int, int]


def estimated(p: TiledProduct, config: Config, tiling: Tiling, limit: float = inf) -> Estimate:
    """Estimate a schedule by walking all its tiles through the cost model; the walk stops once the
    schedule is certain to take at least ``limit`` cycles.
    """
    return walks(p, config)(tiling, limit)


def walks(p: TiledProduct, config: Config) -> Callable[[Tiling, float], Estimate]:
    """`estimated` for tilings of ``p``. Tilings with the same sizes of tiles share their order."""
    known: dict[tuple[int, ...], TileOrder] = {}

    def walked(t: Tiling, limit: float) -> Estimate:
        sizes = t.outputs, t.rows, t.columns, t.inputs, t.kernel_rows, t.weights_outside, t.first
        if sizes not in known:
            known[sizes] = TileOrder(p, config, t)
        return _Tiles(p, config, t, known[sizes]).estimate(limit)

    return walked


class _Step(NamedTuple):
    """A step of a tile's sum: cycles of its products, and transfers of its operands."""

    products: int
    image: _Rows
    weights: _Rows


class _Nest:
    """The loop nest for output tiles of one size. ``image`` and ``weights`` are equal for nests
    that share these buffers. The nests of ``line`` follow each other in the innermost loop over
    tiles, and rotate through the same copies of results.
    """

    __slots__ = ("image", "line", "outputs", "pixels", "steps", "stored", "vectors", "weights")

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
        self.line: tuple[int, ...] = kept[:2] if t.weights_outside else kept[1:]
        if p.carries:
            self.line = kept[0], kept[2]
        self.image: tuple[int, ...] = self.line
        self.weights: tuple[int, ...] = self.line
        if p.is_whole(t):
            self.image = kept if t.weights_outside else kept[1:]
            self.weights = kept[:1] if t.weights_outside else kept


def _rows(blocks: int, rows: int, length: int, element_bytes: int) -> _Rows:
    # An instruction transfers rows of one stride.
    instructions = blocks if rows > 1 else 1
    return int(blocks * rows), int(length) * element_bytes, int(instructions)


class _Tile(NamedTuple):
    """An output tile: its loop nest, and whether its weight tile and image tile differ from those
    of the tile before it. Constants of ``constants`` channel tiles are loaded first. GEMM may have
    to wait for the ALU.
    """

    nest: _Nest
    new_block: bool
    new_image: bool
    constants: int
    behind_alu: bool


class TileOrder:
    """The loop nests for all sizes of tiles. Of each tile in order, the numbers of its nest, of its
    weight tile ``block`` and of its ``image`` tile. Tiles may repeat after each of ``periods``.
    """

    def __init__(self, p: TiledProduct, config: Config, t: Tiling) -> None:
        whole = p.whole
        cuts = [
            cut(whole.outputs, t.outputs, t.first),
            cut(whole.rows, t.rows),
            cut(whole.columns, t.columns),
        ]
        # The first and the last tile along each axis may differ.
        sizes = [list(dict.fromkeys(tiles)) for tiles in cuts]
        self.nests = [_Nest(p, config, t, TileSizes(*size)) for size in product(*sizes)]
        outputs, rows, columns = (
            np.array([known.index(size) for size in tiles])
            for known, tiles in zip(sizes, cuts, strict=True)
        )
        image = rows[:, None] * len(sizes[2]) + columns
        images = np.tile((image.T if p.carries else image).ravel(), p.batch)
        blocks = np.tile(outputs * (len(sizes[1]) * len(sizes[2])), p.independent_products)
        line = len(rows) if p.carries else len(columns)
        order: Literal["C", "F"] = "C" if t.weights_outside else "F"
        block, number = np.indices((len(blocks), len(images)))
        self.block, self.image = block.ravel(order), number.ravel(order)
        self.nest = np.add.outer(blocks, images).ravel(order)
        self.periods = (
            (1, line, image.size, len(images))
            if t.weights_outside
            else (1, len(outputs), len(blocks), line * len(blocks))
        )
        counts = np.bincount(self.nest, minlength=len(self.nests)).tolist()
        numbered = list(zip(self.nests, counts, strict=True))
        self.pixels = sum(count * nest.pixels for nest, count in numbered)
        self.products = sum(
            count * step.products for nest, count in numbered for step in nest.steps
        )

    def __len__(self) -> int:
        return len(self.nest)


class _Tiles:
    """The tiles of a product, in the order of its schedule."""

    def __init__(self, p: TiledProduct, config: Config, tiling: Tiling, order: TileOrder) -> None:
        self.p, self.config, self.tiling, self.order = p, config, tiling, order
        self.pipeline = Pipeline(config)
        self.image = BufferCopies(self.pipeline, p.copies_of_image(tiling))
        prefetched = float(p.prefetched_bytes(tiling, config))
        self.weights = BufferCopies(self.pipeline, p.copies_of_weights(tiling), prefetched)
        self.added = BufferCopies(self.pipeline, tiling.added_copies)
        self.whole, self.resets = p.is_whole(tiling), not config.overwrite

    def estimate(self, limit: float) -> Estimate:
        p, config = self.p, self.config
        pixels = self.order.pixels
        gemm = self.order.products + pixels * (self.resets + p.is_added_to)
        last = self.order.nests[self.order.nest[-1]]
        alu = (last.pixels if config.overlap else pixels) * p.operations * config.lane_columns
        stored = last.vectors * p.requantize.stored * config.out.element_bytes
        store = float(bus_cycles(config, 1, stored))
        steps = self._steps()
        return self.pipeline.estimate(self._schedule(steps), limit, gemm + alu + store, steps)

    def _schedule(self, steps: RepeatedSteps[_Tile]) -> Iterator[None]:
        """Adds the tasks of one tile per step."""
        p, tiling, pipeline, added = self.p, self.tiling, self.pipeline, self.added
        micro_ops, reloads = self._micro_ops()
        pipeline.load_for_compute(micro_ops)
        if p.requantize.shared:
            pipeline.load_for_compute(p.requantize.shared * self.config.acc.element_bytes)
        copies, in_turn = tiling.copies_of_results, tiling.in_turn
        operations, pooled = p.operations, float(p.pooled_cycles(tiling, self.config))
        pooled /= self.config.lane_columns
        # All but the last part of the sums.
        early = 0.0 if self.resets else 1 - 1 / p.phases_of_sums(tiling)[0]
        stores: list[Task] = []
        alu: Task | None = None
        pipeline.live.append(lambda: [alu, *stores[-copies:]])
        for tile in steps:
            nest = tile.nest
            if tile.constants:
                self._load_constants(tile.constants)
            free = stores[-copies] if len(stores) >= copies else None
            waits: list[Task | None] = [alu if tile.behind_alu else None]
            if not early:
                waits.append(free)
            if p.is_added_to:
                added.load(None, *nest.stored)
                moved = pipeline.gemm(nest.pixels, [*waits, added.loaded])
                added.use(moved)
                waits = [moved]
            if self.resets:
                waits = [pipeline.reset(nest.pixels, waits)]
            gemm: Task | None = None
            for step in nest.steps:
                self._load(tile, step)
                if reloads:
                    pipeline.load_for_compute(micro_ops)
                waits += [self.image.loaded, self.weights.loaded]
                if early:
                    pipeline.gemm(step.products * early, waits)
                    waits = [free]
                gemm = pipeline.gemm(step.products * (1 - early), waits)
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
            times = p.requantize.stored
            stores.append(pipeline.store(pieces * times, length, [alu], instructions * times))
            yield

    def _steps(self) -> RepeatedSteps[_Tile]:
        order, constants, behind_alu = self.order, self._constants(), self._behind_alu()
        new_block, new_image = (
            np.diff(numbers, prepend=-1) != 0 for numbers in (order.block, order.image)
        )
        most = int(constants.max()) + 1

        def tile(number: int) -> _Tile:
            rest, loaded = divmod(number, most)
            nest, flags = divmod(rest, 8)
            new_block, new_image, behind = (bool(flags & bit) for bit in (4, 2, 1))
            return _Tile(order.nests[nest], new_block, new_image, loaded, behind)

        flags = new_block * 4 + new_image * 2 + behind_alu
        numbers = (order.nest * 8 + flags) * most + constants
        return RepeatedSteps(numbers, tile, order.periods)

    def _constants(self) -> npt.NDArray[np.int64]:
        """For each tile, the channel tiles whose constants are loaded before it, with ``in_turn``:
        as many as fit, when the first of them is computed.
        """
        p, found = self.p, np.zeros_like(self.order.nest)
        if self.tiling.in_turn:
            held, channels = int(p.outputs_held(self.tiling, self.config)), 0
            for place in np.unique(self.order.block, return_index=True)[1].tolist():
                if channels % held == 0:
                    found[place] = min(held, p.channels - channels)
                channels += self.order.nests[self.order.nest[place]].outputs
        return found

    def _behind_alu(self) -> npt.NDArray[np.bool_]:
        """For each tile, whether its GEMM waits for the ALU because some tile of its loop nest
        accumulates in the bank that the ALU reads. Results alternate between the two banks, in each
        `_Nest.line` separately. The first of carried tiles is a separate nest.
        """
        order = self.order
        if not self.tiling.in_turn:
            return np.isin(order.nest, order.nest[1:])
        lines = [nest.line for nest in order.nests]
        numbers = np.array([lines.index(line) for line in lines])[order.nest]
        banks = np.zeros_like(order.nest)
        for number in np.unique(numbers):
            (places,) = np.nonzero(numbers == number)
            banks[places] = np.arange(len(places)) % 2
        again = np.diff(banks, prepend=2) == 0
        return again if self.p.carries else np.isin(order.nest, order.nest[again])

    def _micro_ops(self) -> tuple[int, bool]:
        """Bytes of all micro-ops and False if they all fit; else the bytes for one GEMM and True.

        Two loops become loops of the instruction, the others are unrolled into micro-ops, and each
        combination of buffer copies needs separate micro-ops.
        """
        p, t, config = self.p, self.tiling, self.config
        phases, *sums = p.phases_of_sums(t)
        loops = [*sums, t.inputs, t.kernel_rows, *p.weight_loops]
        results, image, weights = t.copies_of_results, p.copies_of_image(t), p.copies_of_weights(t)
        # Images rotate with results, or step by step with weights.
        copies = lcm(results, image) * weights if self.whole else results * lcm(image, weights)
        copies = min(copies, len(self.order) * p.steps(t))
        nests = len(self.order.nests)
        one = prod(sorted([*loops, t.outputs])[:-2])
        one += p.row_sums * prod(sorted(loops)[:-2])
        one *= phases
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

    def _load(self, tile: _Tile, step: _Step) -> None:
        """Load the operands of a step, except those still held from the previous step."""
        nest = tile.nest
        if self.whole and self.tiling.weights_outside:
            if tile.new_block:
                self.weights.load(nest.weights, *step.weights)
            self.image.load(nest.image, *step.image)
        else:
            if tile.new_image or not (self.whole or self.tiling.first):
                self.image.load(nest.image, *step.image)
            self.weights.load(nest.weights, *step.weights)
